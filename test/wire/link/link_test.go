package link_test

import (
	"strings"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/test/wire/link"
)

func parse(t *testing.T, settings string) link.Settings {
	t.Helper()
	var s link.Settings
	for _, f := range strings.Fields(settings) {
		k, v, _ := strings.Cut(f, "=")
		if err := s.Set(k, v); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// TestRateAndDelay: packets leave one after another at the rate, and arrive the delay later.
func TestRateAndDelay(t *testing.T) {
	l := link.New(parse(t, "rate=8mbit delay=3ms"), 1, 1) // 1 byte a microsecond
	for i, want := range []time.Duration{4 * time.Millisecond, 5 * time.Millisecond, 6 * time.Millisecond} {
		got, n := l.Send(0, 1000)
		if n != 1 || got[0] != want {
			t.Errorf("packet %d: %d arrivals at %v, want 1 at %v", i, n, got[0], want)
		}
	}
	if got, _ := l.Send(time.Second, 500); got[0] != time.Second+3500*time.Microsecond {
		t.Errorf("after a pause: %v", got[0])
	}
}

// TestQueue: a full queue drops packets, and has room again when its bytes have left.
func TestQueue(t *testing.T) {
	l := link.New(parse(t, "rate=8mbit queue=10KiB"), 1, 1)
	passed := 0
	for range 20 {
		_, n := l.Send(0, 1024)
		passed += n
	}
	if passed != 10 || l.Full != 10 {
		t.Errorf("%d passed, %d dropped; want 10 and 10", passed, l.Full)
	}
	if _, n := l.Send(1100*time.Microsecond, 1024); n != 1 {
		t.Error("the queue is full after one packet has left")
	}
	if _, n := l.Send(time.Hour, 20000); n != 1 {
		t.Error("an empty queue refused a packet that is longer than the queue")
	}
}

// TestJitterKeepsOrder: jitter delays packets without changing their order; reordering does.
func TestJitterKeepsOrder(t *testing.T) {
	l := link.New(parse(t, "delay=1ms jitter=2ms"), 1, 1)
	var last, most time.Duration
	least := time.Hour
	for i := range 1000 {
		now := time.Duration(i) * 10 * time.Millisecond
		got, _ := l.Send(now, 100)
		least, most = min(least, got[0]-now), max(most, got[0]-now)
	}
	if least < time.Millisecond || least > 1100*time.Microsecond || most > 3*time.Millisecond || most < 2900*time.Microsecond {
		t.Errorf("delays of %v to %v, want 1 to 3 ms", least, most)
	}
	for i := range 1000 {
		got, _ := l.Send(time.Minute+time.Duration(i)*100*time.Microsecond, 100)
		if got[0] < last {
			t.Fatalf("packet %d overtook another", i)
		}
		last = got[0]
	}
	l = link.New(parse(t, "delay=1ms reorder=10%"), 1, 1)
	overtaken := 0
	last = 0
	for i := range 1000 {
		got, _ := l.Send(time.Duration(i)*100*time.Microsecond, 100)
		if got[0] < last {
			overtaken++
		}
		last = got[0]
	}
	if overtaken < 50 || l.Reordered < 70 || l.Reordered > 130 {
		t.Errorf("%d of 1000 were overtaken, %d counted; want about 100", overtaken, l.Reordered)
	}
}

// TestFaults: lost and repeated packets have the requested share, a cut link passes nothing, and the
// same seed gives the same faults.
func TestFaults(t *testing.T) {
	run := func() (n int, c link.Counters) {
		l := link.New(parse(t, "loss=20% duplicate=10%"), 7, 3)
		for range 10000 {
			_, k := l.Send(0, 1)
			n += k
		}
		return n, l.Counters
	}
	n, c := run()
	if c.Lost < 1800 || c.Lost > 2200 || c.Duplicated < 700 || c.Duplicated > 900 || n != int(c.Sent+c.Duplicated) {
		t.Errorf("%d arrivals, %+v", n, c)
	}
	if m, d := run(); m != n || d != c {
		t.Errorf("the same seed gave %d arrivals, then %d", n, m)
	}
	l := link.New(link.Settings{Cut: true}, 1, 1)
	if _, n := l.Send(0, 1); n != 0 || l.Counters.Cut != 1 {
		t.Error("a cut link passed a packet")
	}
}

// TestSettingsErrors: an error names the setting, the value and the accepted values.
func TestSettingsErrors(t *testing.T) {
	for _, c := range []struct{ key, value, want string }{
		{"rate", "1gb", "rate: \"1gb\" is not a rate: want a number with gbit"},
		{"rate", "-1gbit", "is not a rate"},
		{"rate", "NaNgbit", "is not a rate"},
		{"delay", "5", "with a unit"},
		{"delay", "-5ms", "not a delay"},
		{"queue", "12", "not a queue"},
		{"queue", "2000MiB", "not a queue"},
		{"loss", "0.1", "0% to 100%"},
		{"loss", "101%", "0% to 100%"},
		{"speed", "1", "no setting \"speed\": want one of rate"},
	} {
		var s link.Settings
		if err := s.Set(c.key, c.value); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s=%s: error %v, want %q", c.key, c.value, err, c.want)
		}
	}
	if s := parse(t, "rate=1gbit queue=1.5MiB loss=0.5% jitter=5us"); s.Rate != 125e6 || s.Queue != 3<<19 ||
		s.Loss != 0.005 || s.Jitter != 5*time.Microsecond {
		t.Errorf("%+v", s)
	}
}
