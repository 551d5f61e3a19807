package forecast

import (
	"cmp"
	"math/rand/v2"
	"slices"

	"github.com/shoal-llm/shoal/collective"
	"github.com/shoal-llm/shoal/topology"
)

// Machine is one node: its measured speeds. All are of the whole node.
type Machine struct {
	Read     float64           `json:"read_bytes_per_s"`
	Products topology.Products `json:"multiply_adds_per_s"` // of products, by rows
	Base     float64           `json:"exchange_s"`          // software of one exchange, without messages
	Message  float64           `json:"message_s"`           // software for sending or receiving one message
	Step     float64           `json:"coordinator_s"`       // for one step, without the link
	Noise    float64           `json:"noise"`               // standard deviation of a computation's time, as a share of it
}

// MachineOf returns a node with measured speeds. Sending and receiving cost the same: from two to
// four ranks, an exchange has two messages more in each direction.
func MachineOf(s topology.Speeds) Machine {
	message := max(0, (s.Syncs.Four-s.Syncs.Two)/4)
	return Machine{Read: s.Read, Products: s.Products, Message: message, Base: max(0, s.Syncs.Two-2*message), Step: stepSeconds}
}

// stepSeconds is the fixed overhead of a step (docs/benchmarks.md, Nodes).
const stepSeconds = 0.7e-3

// Link is the connection of one node to all others.
type Link struct {
	Delay float64 `json:"delay_s"`          // one way
	Rate  float64 `json:"rate_bytes_per_s"` // in each direction; 0: unlimited
}

// Time is the time of a step and of its parts, in seconds.
type Time struct {
	Step    float64 `json:"step_s"`
	Compute float64 `json:"compute_s"` // of the busiest rank
	Wait    float64 `json:"wait_s"`    // for exchanges
	Control float64 `json:"control_s"`
	Sent    float64 `json:"sent_bytes"` // by all ranks; a broadcast counts once
	// Messages that all ranks send. A broadcast to n-1 ranks counts as n-1.
	Messages float64 `json:"messages"`
	Syncs    int     `json:"exchanges"` // one after another
}

// seconds is the time of a stage's computation. Reading and multiplying overlap.
func (m *Machine) seconds(s *stage, rows int) float64 {
	rate := m.Products[0]
	for i, r := range topology.ChunkRows {
		if rows >= r {
			rate = m.Products[i]
		}
	}
	return max(s.bytes/m.Read, (s.macs+s.flops)/rate)
}

// simulated is the number of equal layers that are simulated; the others count the same time.
const simulated = 4

// step simulates a step.
func (w *Work) step(l load, m Machine, link Link, seed uint64) Time {
	s := simulation{Machine: m, link: link, load: l, ready: make([]float64, l.ranks), random: rand.New(rand.NewPCG(seed, uint64(l.ranks)))}
	for i := range w.groups {
		g := &w.groups[i]
		stages := w.stages(g, l)
		layers := min(g.layers, simulated)
		before, at := s.time, slices.Max(s.ready)
		for range layers {
			for j := range stages {
				s.stage(&stages[j])
			}
		}
		s.repeat(float64(g.layers)/float64(layers), before, at)
	}
	head := w.head(l)
	s.stage(&head)
	t := s.time
	t.Control = m.Step
	if l.ranks > 1 {
		t.Control += 2 * link.Delay // the plan, and its result
	}
	t.Step = slices.Max(s.ready) + t.Control
	t.Wait = t.Step - t.Compute - t.Control
	return t
}

// simulation is a step in progress.
type simulation struct {
	Machine
	link   Link
	load   load
	ready  []float64 // when each rank has computed and received everything so far
	random *rand.Rand
	time   Time
}

// repeat multiplies the costs since before by times.
func (s *simulation) repeat(times float64, before Time, at float64) {
	more := times - 1
	extra := (slices.Max(s.ready) - at) * more
	for i := range s.ready {
		s.ready[i] += extra
	}
	t := &s.time
	t.Compute += (t.Compute - before.Compute) * more
	t.Sent += (t.Sent - before.Sent) * more
	t.Messages += (t.Messages - before.Messages) * more
	t.Syncs += int(float64(t.Syncs-before.Syncs)*more + 0.5)
}

// stage computes on all ranks and exchanges. All ranks compute as long as the busiest one.
func (s *simulation) stage(x *stage) {
	d := s.seconds(x, s.load.rows)
	s.time.Compute += d
	for i := range s.ready {
		noise := 0.0
		if s.Noise > 0 {
			noise = max(-0.5, s.random.NormFloat64()*s.Noise)
		}
		s.ready[i] += d * (1 + noise)
	}
	if x.pattern != none && len(s.ready) > 1 {
		s.exchange(x.exchange)
	}
}

// exchange simulates every message of an exchange. A rank sends to one rank after another, first to
// the next one, so that not all send to the same rank at once. A message occupies the sender's link
// and then, after the delay, the receiver's.
func (s *simulation) exchange(x exchange) {
	n := len(s.ready)
	senders, receivers := cmp.Or(x.senders, n), n
	switch x.pattern {
	case fromOwner, fromOwnerParts:
		senders = s.load.owners()
	case toOwner:
		receivers = s.load.owners()
	}
	wire := 0.0
	if s.link.Rate > 0 {
		wire = x.bytes / s.link.Rate
	}
	each := max(s.Message, wire) // of one message at one end
	done := make([]float64, n)
	arrivals := make([]float64, 0, n)
	perSender := receivers
	if x.pattern != toOwner || receivers == n {
		perSender--
	}
	for r := range n {
		done[r] = s.ready[r]
		if r < senders {
			done[r] += float64(perSender) * each // its own sending
		}
	}
	for r := range receivers {
		arrivals = arrivals[:0]
		for d := 1; d < n; d++ {
			from := (r - d + n) % n
			if from >= senders {
				continue
			}
			place := d // messages before this one, and itself
			if x.pattern == toOwner {
				place = min(d, receivers)
			}
			arrivals = append(arrivals, s.ready[from]+s.Base+float64(place)*each+s.link.Delay)
		}
		slices.Sort(arrivals)
		at := 0.0
		for _, a := range arrivals {
			at = max(at, a) + each
		}
		done[r] = max(done[r], at)
	}
	copy(s.ready, done)
	s.time.Syncs++
	messages := float64(senders*receivers - min(senders, receivers))
	s.time.Messages += messages
	if x.pattern == toOwner || x.pattern == fromOwnerParts {
		s.time.Sent += messages * float64(collective.MessageBytes(int(x.bytes), true))
	} else {
		s.time.Sent += float64(senders) * float64(collective.MessageBytes(int(x.bytes), true))
	}
}
