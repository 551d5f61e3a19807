package forecast

import (
	"github.com/shoal-llm/shoal/actors/socket/step"
	"github.com/shoal-llm/shoal/internal/machine/costs"
)

// Cluster is a number of equal nodes.
type Cluster struct {
	Nodes   int
	Machine Machine
	Fewer   []costs.Table // of the same node with fewer threads; decode uses the number that is fastest
	Link    Link
	Passes  int  // the most decode passes of a plan; 0: 1
	Sampled bool // tokens are drawn from all logits; otherwise the best one is taken
	Seed    uint64
}

// ClusterOf returns equal nodes with measured tables, the one with the most threads first.
func ClusterOf(nodes int, tables []costs.Table) Cluster {
	return Cluster{Nodes: nodes, Machine: MachineOf(tables[0]), Fewer: tables[1:], Passes: usualPasses}
}

// usualPasses is the default of --decode-steps.
const usualPasses = 8

// Decode returns the time of a step that decodes one token for each of batch sequences, whose caches
// have this many slots.
func (w *Work) Decode(c Cluster, batch, slots int) Time {
	l := load{rows: batch, context: slots, sampled: c.Sampled, ranks: c.Nodes}
	best := w.decode(l, c.Machine, &c)
	for _, fewer := range c.Fewer {
		m := c.Machine
		m.Table = fewer
		if t := w.decode(l, m, &c); t.Step < best.Step {
			best = t
		}
	}
	return best
}

// Prompt returns the time until the first token of a prompt that is read alone in chunks.
func (w *Work) Prompt(c Cluster, tokens, chunk int) (sum Time) {
	const parts = 8 // chunks take longer as the context grows, linearly: a few are enough
	read := func(rows, context int, times float64) {
		l := load{rows: rows, context: context, prompt: true, ranks: c.Nodes}
		sum.add(w.through(l, c.Machine, &c).end(c.control()+float64(rows)*c.Machine.Token), times)
	}
	chunks, rest := tokens/chunk, tokens%chunk
	simulated := min(parts, chunks)
	for i := range simulated {
		at := (float64(i) + 0.5) / float64(simulated) * float64(tokens-rest)
		read(chunk, int(at), float64(chunks)/float64(simulated))
	}
	if rest > 0 {
		read(rest, tokens-rest/2, 1)
	}
	last := load{rows: 1, sampled: c.Sampled, ranks: c.Nodes}
	s := start(last, c.Machine, c.Link, c.Seed)
	head := w.head(last)
	s.stage(&head)
	each := min(w.layers, step.JoinedLayers(tokens*int(w.slotBytes)))
	s.repeated([]stage{w.handOver(tokens*each, c.Nodes)}, (w.layers+each-1)/each)
	sum.add(s.end(c.Machine.Row), 1)
	return sum
}

// add adds a time, which occurs a number of times.
func (t *Time) add(o Time, times float64) {
	t.Step += o.Step * times
	t.Compute += o.Compute * times
	t.Wait += o.Wait * times
	t.Control += o.Control * times
	t.Sent += o.Sent * times
	t.Messages += o.Messages * times
	t.Syncs += int(float64(o.Syncs) * times)
}
