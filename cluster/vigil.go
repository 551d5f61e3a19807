package cluster

import (
	"log/slog"
	"sync"
	"time"

	"github.com/shoal-llm/shoal/internal/security"
	"github.com/shoal-llm/shoal/internal/store"
)

// vigil is a coordinator that does not coordinate yet: why, and whether anybody else does.
type vigil struct {
	standby bool
	log     *slog.Logger
	led     func() bool // another process coordinates
	tell    func(why string, alone bool)

	mu    sync.Mutex
	why   string
	quit  chan struct{}
	ended sync.WaitGroup
}

// takeoverMost is how long nobody may coordinate, where somebody did, before that is told
// as trouble: a takeover takes 6 to 15 s, and who connects meanwhile waits for it.
const takeoverMost = 20 * time.Second

// logAfter is how long a standby must wait for one reason before the log has it: the reasons
// of a start pass in a moment.
const logAfter = 5 * time.Second

func (v *vigil) start() {
	v.quit = make(chan struct{})
	v.ended.Go(v.run)
}

func (v *vigil) say(why string) {
	v.mu.Lock()
	v.why = why
	v.mu.Unlock()
}

func (v *vigil) stop() {
	close(v.quit)
	v.ended.Wait()
}

func (v *vigil) run() {
	t := time.NewTicker(waitsTick)
	defer t.Stop()
	limit, since := store.Quiet, time.Now()
	said, wasAlone := "", false
	logged, changed := "", time.Now()
	for {
		if v.led() {
			limit, since = takeoverMost, time.Now()
		}
		alone := time.Since(since) > limit
		v.mu.Lock()
		why := v.why
		v.mu.Unlock()
		if why != said {
			changed = time.Now()
		}
		if v.standby && why != "" && why != logged && time.Since(changed) >= logAfter {
			v.log.Info("standing by", "reason", why)
			logged = why
		}
		if why != "" && (why != said || alone != wasAlone) {
			said, wasAlone = why, alone
			if alone {
				why += "; nobody coordinates meanwhile"
			}
			if v.tell != nil {
				v.tell(why, alone)
			}
		}
		select {
		case <-t.C:
		case <-v.quit:
			return
		}
	}
}

// led tells whether another process coordinates, as far as gossip knows.
func (b *bus) led() bool {
	for _, m := range b.gossip.Members() {
		if m.Meta.Role == string(security.RoleCoordinator) && m.Meta.Leads && m.Name != b.gossip.Name() {
			return true
		}
	}
	return false
}
