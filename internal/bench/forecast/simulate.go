package forecast

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/shoal-llm/shoal/collective"
	"github.com/shoal-llm/shoal/internal/machine/costs"
)

// Machine has the times of one node's computations, and those of the coordinator, in seconds.
type Machine struct {
	costs.Table
	Step  float64 `json:"coordinator_s"`       // for one plan, without the link,
	Row   float64 `json:"coordinator_row_s"`   // for each of its decode rows,
	Token float64 `json:"coordinator_token_s"` // and for each of its prompt tokens
	Noise float64 `json:"noise"`               // standard deviation of a computation's time, as a share of it
}

// MachineOf returns a node with these costs.
func MachineOf(t costs.Table) Machine {
	return Machine{Table: t, Step: stepSeconds, Row: rowSeconds, Token: tokenSeconds}
}

// The coordinator's time for a plan: messages, the next plan, and streams of tokens (docs/forecast.md, Checked).
const (
	stepSeconds  = 1.4e-3
	rowSeconds   = 20e-6
	tokenSeconds = 1e-6
)

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

// part returns the time of a product that some of all ranks compute, as a share of its time when all compute: nodes
// of one machine share its memory.
func (m *Machine) part(some, all int) float64 {
	if some == 0 || all == 1 {
		return 1
	}
	return m.Alone + (1-m.Alone)*float64(some-1)/float64(all-1)
}

// seconds returns the time of a stage's computation on the busiest of some ranks.
func (m *Machine) seconds(s *stage, ranks int) float64 {
	sum := float64(s.regions)*m.Region + m.Attention(s.decode.rows, s.decode.heads, s.decode.slots) + s.prompt*m.PromptSlot
	for _, p := range s.products {
		sum += m.Product(p.weights, p.rows, float64(p.columns)) * m.part(p.ranks, ranks)
	}
	threads := float64(max(1, m.Threads))
	sum += math.Ceil(s.samples/threads) * m.Sample
	if s.norms >= parallelRows {
		return sum + math.Ceil(s.norms/threads)*float64(s.width)*m.Element + m.Region
	}
	return sum + s.norms*float64(s.width)*m.Element
}

// parallelRows is the number of rows from which threads share norms (layer.minParallelRows).
const parallelRows = 4

// simulated is the number of equal layers that are simulated; the others count the same time.
const simulated = 4

// decode simulates a step of decode rows, or one pass of a plan that has several.
func (w *Work) decode(l load, m Machine, c *Cluster) Time {
	s := w.through(l, m, c)
	head := w.head(l)
	s.stage(&head)
	var passes int
	if most, pass := max(1, c.Passes), slices.Max(s.ready); float64(most)*pass <= planSeconds {
		passes = most // also of a pass that costs nothing
	} else {
		passes = max(1, int(planSeconds/pass))
	}
	if passes > 1 {
		s.stage(&stage{exchange: exchange{pattern: allToAll, bytes: 4 * float64(l.owned())}}) // the tokens for the next pass
	}
	return s.end((c.control() + m.Row*float64(l.rows)) / float64(passes))
}

// control returns the coordinator's time for a plan, which travels to the nodes, and its result back.
func (c *Cluster) control() float64 {
	if c.Nodes > 1 {
		return c.Machine.Step + 2*c.Link.Delay
	}
	return c.Machine.Step
}

// planSeconds is the most time of all passes of a plan (docs/decisions/passes.md).
const planSeconds = 50e-3

// through simulates the layers of a step.
func (w *Work) through(l load, m Machine, c *Cluster) *simulation {
	s := start(l, m, c.Link, c.Seed)
	for i := range w.groups {
		g := &w.groups[i]
		s.repeated(w.stages(g, l), g.layers)
	}
	return s
}

// start returns a simulation in which every rank is ready.
func start(l load, m Machine, link Link, seed uint64) *simulation {
	return &simulation{Machine: m, link: link, load: l, ready: make([]float64, l.ranks), random: rand.New(rand.NewPCG(seed, uint64(l.ranks)))}
}

// repeated simulates the stages of some equal layers.
func (s *simulation) repeated(stages []stage, all int) {
	layers := min(all, simulated)
	before, at := s.time, slices.Max(s.ready)
	for range layers {
		for j := range stages {
			s.stage(&stages[j])
		}
	}
	s.repeat(float64(all)/float64(layers), before, at)
}

// end returns the time of all that was simulated, and of the coordinator.
func (s *simulation) end(control float64) Time {
	t := s.time
	t.Control = control
	t.Step = slices.Max(s.ready) + t.Control
	t.Wait = max(0, t.Step-t.Compute-t.Control)
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
	d := s.seconds(x, len(s.ready))
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

// arrived returns when a rank has the messages of all others. A rank sends first to the next one.
func (s *simulation) arrived(buffer *[]float64, p pattern, rank, senders, receivers int, each float64) (at float64) {
	n, arrivals := len(s.ready), (*buffer)[:0]
	for d := 1; d < n; d++ {
		from := (rank - d + n) % n
		if from >= senders {
			continue
		}
		place := d // messages before this one, and itself
		if p == toOwner {
			place = min(d, receivers)
		}
		arrivals = append(arrivals, s.ready[from]+s.Exchange+float64(place)*each+s.link.Delay)
	}
	slices.Sort(arrivals)
	for _, a := range arrivals {
		at = max(at+each, a+s.Message)
	}
	*buffer = arrivals
	return at
}

// exchange simulates every message of an exchange. A rank sends to one rank after another, first to
// the next one, so that not all send to the same rank at once. The bytes of a message occupy the sender's link
// and, after the delay, the receiver's. A rank copies all bytes on one thread, sent ones and received ones.
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
		copies := 0.0
		if r < senders {
			done[r] += float64(perSender) * each // its own sending
			copies += float64(perSender)
		}
		if r < receivers {
			copies += float64(senders)
			if r < senders {
				copies--
			}
			done[r] = max(done[r], s.arrived(&arrivals, x.pattern, r, senders, receivers, each)) + x.sums*s.Element
		}
		done[r] += copies * max(0, x.bytes*s.Byte-wire/2) // this overlaps with the link
		if x.sums == 0 {                                  // activations are packed and unpacked; sums are used in place
			done[r] += copies * x.bytes * s.Copy
		}
	}
	copy(s.ready, done)
	s.time.Syncs++
	messages := float64(senders*receivers - min(senders, receivers))
	s.time.Messages += messages
	if x.pattern == toOwner || x.pattern == fromOwnerParts {
		s.time.Sent += messages * float64(collective.MessageBytes(int(x.bytes)))
	} else {
		s.time.Sent += float64(senders) * float64(collective.MessageBytes(int(x.bytes)))
	}
}
