package topology

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

// leaseWorld is a store with one record, some candidates, and nodes that follow the highest epoch.
// The network to the store loses requests and answers, and delays writes until long after their
// sender has given them up.
type leaseWorld struct {
	r        *rand.Rand
	blind    bool // the store does not compare revisions, for a test of the checker
	now      time.Duration
	claim    Claim
	revision uint64
	late     []WriteClaim
	rivals   []*rival
	nodes    [3]struct {
		epoch uint32
		term  uint64
	}
	terms  map[uint64]string // term -> process
	epochs map[uint32]string // epoch -> process that sent it to nodes
	loads  []load
	log    []string
	wrong  string
	lives  uint64
}

type load struct {
	from  *rival
	term  uint64
	epoch uint32
	node  int
}

type rival struct {
	name      string
	life      uint64
	lease     *Lease
	authority *Authority
	asked     []LeaseEffect // reads and writes in flight
	frozen    bool
	over      bool
	term      uint64
}

func (w *leaseWorld) start(name string, successor bool) *rival {
	w.lives++
	v := &rival{name: name, life: w.lives}
	v.lease = NewLease(LeaseConfig{Holder: name, Incarnation: v.life, TTL: 5 * time.Second, Hint: time.Second,
		Renew: time.Second, Successor: successor, Bootstrap: true})
	return v
}

func (w *leaseWorld) who(v *rival) string { return fmt.Sprintf("%s.%d", v.name, v.life) }

func (w *leaseWorld) say(format string, a ...any) {
	w.log = append(w.log, fmt.Sprintf("%7.2fs ", w.now.Seconds())+fmt.Sprintf(format, a...))
}

func (w *leaseWorld) fail(format string, a ...any) {
	w.say("VIOLATION "+format, a...)
	if w.wrong == "" {
		w.wrong = fmt.Sprintf(format, a...)
	}
}

func (w *leaseWorld) lead(v *rival, effects []LeaseEffect) {
	for _, e := range effects {
		switch e := e.(type) {
		case ReadClaim, WriteClaim:
			v.asked = append(v.asked, e)
			if len(v.asked) > 1 {
				w.fail("%s has two requests under way", w.who(v))
			}
		case Elected:
			if v.term = e.Claim.Term; w.terms[v.term] != "" {
				w.fail("term %d has two holders, %s and %s", v.term, w.terms[v.term], w.who(v))
			}
			w.terms[v.term] = w.who(v)
			w.say("%s holds term %d, after epoch %d", w.who(v), v.term, e.Claim.Placement.Epoch)
			v.authority = NewAuthority(AuthorityConfig{Shape: testShape(), Mapping: Gather, Settle: time.Second,
				Backoff: time.Second, ModelHash: "m", After: e.Claim.Placement.Epoch})
			for i := range w.nodes {
				w.direct(v, v.authority.Up(Node{ID: fmt.Sprint("n", i), Incarnation: 1, ModelHash: "m"}))
			}
		case Recorded:
			w.direct(v, v.authority.Recorded(e.Epoch))
		case Deposed:
			w.say("%s is deposed by %s.%d", w.who(v), e.By.Holder, e.By.Incarnation)
			v.over = true
			w.direct(v, v.authority.Depose("deposed"))
		}
	}
}

func (w *leaseWorld) direct(v *rival, effects []Effect) {
	for _, e := range effects {
		switch e := e.(type) {
		case Record:
			w.lead(v, v.lease.Record(e.Placement, make([]uint64, len(e.Nodes))))
		case LoadSlices:
			n := e.Placement.Epoch
			w.say("%s opens epoch %d", w.who(v), n)
			if by := w.epochs[n]; by != "" {
				w.fail("epoch %d was opened by %s and by %s", n, by, w.who(v))
			}
			w.epochs[n] = w.who(v)
			for i := range w.nodes {
				w.loads = append(w.loads, load{v, v.term, n, i})
			}
		case FormGroup:
			for i := range w.nodes {
				w.direct(v, v.authority.Answered(e.Epoch, fmt.Sprint("n", i), nil))
			}
		}
	}
}

// store carries out a request of v, or loses it.
func (w *leaseWorld) store(v *rival, faults bool) {
	e := v.asked[0]
	v.asked = v.asked[1:]
	luck := 99
	if faults {
		luck = w.r.IntN(100)
	}
	if luck < 10 {
		if wr, ok := e.(WriteClaim); ok && luck < 5 {
			w.late = append(w.late, wr)
		}
		w.lead(v, v.lease.OutcomeUnknown())
		return
	}
	switch e := e.(type) {
	case ReadClaim:
		w.lead(v, v.lease.ReadDone(w.claim, w.revision))
	case WriteClaim:
		done := w.write(e)
		switch {
		case luck < 18:
			w.lead(v, v.lease.OutcomeUnknown())
		case done:
			w.lead(v, v.lease.WriteDone(w.revision))
		default:
			w.lead(v, v.lease.WriteConflict())
		}
	}
}

func (w *leaseWorld) write(e WriteClaim) bool {
	if e.After != w.revision && !w.blind {
		return false
	}
	w.claim, w.revision = e.Claim, w.revision+1
	return true
}

func (w *leaseWorld) deliver(i int) {
	m := w.loads[i]
	w.loads = append(w.loads[:i], w.loads[i+1:]...)
	n := &w.nodes[m.node]
	if m.epoch <= n.epoch {
		return // as every socket does, see actors/socket/machine/state.go
	}
	if m.term < n.term {
		w.fail("node %d follows %s of term %d into epoch %d, after a coordinator of term %d", m.node, w.who(m.from), m.term, m.epoch, n.term)
	}
	n.epoch, n.term = m.epoch, m.term
	if m.from.authority != nil && !m.from.frozen {
		w.direct(m.from, m.from.authority.Answered(m.epoch, fmt.Sprint("n", m.node), nil))
	}
}

// step is one random event.
func (w *leaseWorld) step() {
	v := w.rivals[w.r.IntN(len(w.rivals))]
	switch k := w.r.IntN(20); {
	case k < 8:
		w.now += time.Duration(w.r.IntN(400)) * time.Millisecond
		if !v.frozen {
			w.lead(v, v.lease.Tick(w.now))
			if v.authority != nil {
				w.direct(v, v.authority.Tick(w.now))
			}
		}
	case k < 14:
		if len(v.asked) > 0 && !v.frozen {
			w.store(v, true)
		}
	case k < 16:
		if len(w.loads) > 0 {
			w.deliver(w.r.IntN(len(w.loads)))
		}
	case k == 16:
		if len(w.late) > 0 {
			i := w.r.IntN(len(w.late))
			w.write(w.late[i])
			w.late = append(w.late[:i], w.late[i+1:]...)
		}
	case k == 17:
		v.frozen = !v.frozen
		w.say("%s frozen: %v", w.who(v), v.frozen)
	case k == 18:
		for i := range w.rivals {
			if w.rivals[i] == v && w.r.IntN(3) == 0 {
				w.say("%s is killed", w.who(v))
				w.rivals[i] = w.start(v.name, w.r.IntN(2) == 0)
			}
		}
	case k == 19:
		v.lease.HolderLost(1 + w.r.Uint64N(w.lives)) // may be wrong
		if v.authority != nil && !v.frozen {
			w.direct(v, v.authority.Broken(v.authority.Epoch(), "a step failed"))
		}
	}
}

func runLease(seed uint64, blind bool) *leaseWorld {
	w := &leaseWorld{r: rand.New(rand.NewPCG(seed, 1)), blind: blind, terms: map[uint64]string{}, epochs: map[uint32]string{}}
	for _, n := range []string{"a", "b", "c"} {
		w.rivals = append(w.rivals, w.start(n, false))
	}
	for i := 0; i < 1500 && w.wrong == ""; i++ {
		w.step()
	}
	// The network heals and all processes run; deposed ones are restarted.
	w.say("quiet from here")
	for i, v := range w.rivals {
		v.frozen = false
		if v.authority != nil { // lost answers end as calls without one
			for n := range w.nodes {
				w.direct(v, v.authority.Answered(v.authority.Epoch(), fmt.Sprint("n", n), context.DeadlineExceeded))
			}
		}
		if v.over {
			w.rivals[i] = w.start(v.name, false)
		}
	}
	for i := 0; i < 400 && w.wrong == ""; i++ {
		w.now += 100 * time.Millisecond
		for j, v := range w.rivals {
			if v.over {
				w.rivals[j] = w.start(v.name, false)
				continue
			}
			w.lead(v, v.lease.Tick(w.now))
			if v.authority != nil {
				w.direct(v, v.authority.Tick(w.now))
			}
			for len(v.asked) > 0 {
				w.store(v, false)
			}
		}
		for len(w.loads) > 0 {
			w.deliver(0)
		}
		for ; len(w.late) > 0; w.late = w.late[1:] {
			w.write(w.late[0])
		}
	}
	if w.wrong != "" {
		return w
	}
	holds, serves := 0, 0
	for _, v := range w.rivals {
		if v.lease.Holding() {
			holds++
			if p, why := v.authority.Phase(); p == Serving {
				serves++
			} else {
				w.say("%s is %s (%s), epoch %d", w.who(v), p, why, v.authority.Epoch())
			}
		}
	}
	if holds != 1 || serves != 1 {
		w.fail("in a quiet world %d processes hold the lease and %d serve", holds, serves)
	}
	return w
}

// TestLease: the network to the store loses and delays messages, and processes stop and restart. A term
// and an epoch have one holder, no node follows an older coordinator after a newer one, and in the end
// one coordinator serves.
func TestLease(t *testing.T) {
	seeds := uint64(400)
	if !testing.Short() {
		seeds = 2000
	}
	changes := 0
	for seed := range seeds {
		w := runLease(seed, false)
		if w.wrong != "" {
			t.Fatalf("seed %d: %s\n%s", seed, w.wrong, strings.Join(w.log, "\n"))
		}
		changes += len(w.terms)
	}
	if changes < int(seeds)*3 {
		t.Errorf("%d terms in %d schedules: they disturb too little to show anything", changes, seeds)
	}
}

// TestLeaseWithoutCompareIsCaught: the checker fails for a store that accepts every write.
func TestLeaseWithoutCompareIsCaught(t *testing.T) {
	caught := map[string]int{}
	for seed := range uint64(50) {
		if w := runLease(seed, true); w.wrong != "" {
			caught[strings.Join(strings.Fields(w.wrong)[:1], " ")]++
		}
	}
	n := caught["epoch"] + caught["term"] + caught["node"]
	if n < 45 {
		t.Errorf("a store without compare-and-swap was caught in %d of 50 schedules: %v", n, caught)
	}
}
