package coordinator

import (
	"log/slog"
	"sync"
	"time"

	"github.com/shoal-llm/shoal/internal/store"
)

// standbyWait is the state of a process that does not coordinate yet: the reason, and whether
// another process coordinates.
type standbyWait struct {
	standby    bool
	log        *slog.Logger
	othersLead func() bool // reports whether another process coordinates
	notify     func(why string, alone bool)

	mu    sync.Mutex
	why   string
	quit  chan struct{}
	ended sync.WaitGroup
}

// takeoverLimit is how long a coordinator may be missing before that is reported as trouble. A
// takeover takes 6 to 15 s, and clients that connect meanwhile wait for it.
const takeoverLimit = 20 * time.Second

// logAfter is how long a standby must wait for one reason before the reason is logged. Reasons at
// start change quickly.
const logAfter = 5 * time.Second

func (v *standbyWait) start() {
	v.quit = make(chan struct{})
	v.ended.Go(v.run)
}

func (v *standbyWait) setReason(why string) {
	v.mu.Lock()
	v.why = why
	v.mu.Unlock()
}

func (v *standbyWait) stop() {
	close(v.quit)
	v.ended.Wait()
}

func (v *standbyWait) run() {
	t := time.NewTicker(waitsTick)
	defer t.Stop()
	limit, since := store.QuietPeriod, time.Now()
	reported, wasAlone := "", false
	logged, changed := "", time.Now()
	for {
		if v.othersLead() {
			limit, since = takeoverLimit, time.Now()
		}
		alone := time.Since(since) > limit
		v.mu.Lock()
		why := v.why
		v.mu.Unlock()
		if why != reported {
			changed = time.Now()
		}
		if v.standby && why != "" && why != logged && time.Since(changed) >= logAfter {
			v.log.Info("standing by", "reason", why)
			logged = why
		}
		if why != "" && (why != reported || alone != wasAlone) {
			reported, wasAlone = why, alone
			if alone {
				why += "; no coordinator is active"
			}
			if v.notify != nil {
				v.notify(why, alone)
			}
		}
		select {
		case <-t.C:
		case <-v.quit:
			return
		}
	}
}
