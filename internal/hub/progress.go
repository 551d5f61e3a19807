package hub

import (
	"sync"
	"time"
)

// Progress is the progress of a pull.
type Progress struct {
	Model       string
	Done, Total int64         // bytes; Done includes bytes that were on disk before
	Files, Of   int           // files that are complete, and all
	Rate        float64       // bytes per second of the last seconds; 0: not known yet
	Left        time.Duration // at that rate; 0: not known
	Waiting     string        // why nothing arrives, such as a second process that fetches the file; usually ""
}

// rateWindow is the period over which a rate is measured.
const rateWindow = 8 * time.Second

// meter computes a rate of transfer from the bytes that had arrived at several times.
type meter struct {
	samples []sample
}

type sample struct {
	at  time.Time
	got int64
}

// add takes the number of bytes that have arrived by now and returns bytes per second.
func (m *meter) add(now time.Time, got int64) float64 {
	m.samples = append(m.samples, sample{now, got})
	for len(m.samples) > 2 && now.Sub(m.samples[1].at) >= rateWindow {
		m.samples = m.samples[1:]
	}
	first := m.samples[0]
	if d := now.Sub(first.at).Seconds(); d > 0 && got > first.got {
		return float64(got-first.got) / d
	}
	return 0
}

// timeLeft returns how long the rest takes at a rate.
func timeLeft(rest int64, rate float64) time.Duration {
	if rate <= 0 || rest <= 0 {
		return 0
	}
	s := float64(rest) / rate
	if s > 1e6 {
		return 0
	}
	return time.Duration(s * float64(time.Second)).Round(time.Second)
}

// tracker collects the reports of the workers of one pull.
type tracker struct {
	mu      sync.Mutex
	p       Progress
	got     int64            // bytes that arrived in this pull
	parts   map[string]int64 // bytes on disk of each file
	waiting map[string]string
	meter   meter
}

func newTracker(model string) *tracker {
	return &tracker{p: Progress{Model: model}, parts: map[string]int64{}, waiting: map[string]string{}}
}

// expect adds files to the total.
func (t *tracker) expect(files int, bytes int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.p.Of += files
	t.p.Total += bytes
}

// set states how many bytes of a file are on disk.
func (t *tracker) set(name string, bytes int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.p.Done += bytes - t.parts[name]
	t.parts[name] = bytes
}

// arrive counts bytes of a file that came over the network; dropped bytes are negative.
func (t *tracker) arrive(name string, bytes int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.p.Done += bytes
	t.parts[name] += bytes
	t.got += max(bytes, 0)
}

// finish counts a complete file.
func (t *tracker) finish(name string, size int64) {
	t.set(name, size)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.p.Files++
}

// wait records why a file makes no progress; "": it does.
func (t *tracker) wait(name, why string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if why == "" {
		delete(t.waiting, name)
	} else {
		t.waiting[name] = why
	}
}

// now returns the progress at a time.
func (t *tracker) now(at time.Time) Progress {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.p
	p.Rate = t.meter.add(at, t.got)
	p.Left = timeLeft(p.Total-p.Done, p.Rate)
	for _, why := range t.waiting {
		if p.Rate == 0 && (p.Waiting == "" || why < p.Waiting) {
			p.Waiting = why
		}
	}
	return p
}

// report calls show every interval until stop is called, and once at the end. stop waits
// for the last call.
func (t *tracker) report(show func(Progress), every time.Duration) (stop func()) {
	if show == nil {
		return func() {}
	}
	end, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case now := <-tick.C:
				show(t.now(now))
			case <-end:
				show(t.now(time.Now()))
				return
			}
		}
	}()
	return func() { close(end); <-done }
}
