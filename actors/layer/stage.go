package layer

import "github.com/shoal-llm/shoal/collective"

// Stage is one thing that a layer does in a step: a computation, which runs on the
// socket's executor, or an exchange with the other ranks. Each is a value beside what it
// computes or moves; schedule.go says in which order a layer goes through them.
type Stage struct {
	Name string
	Part Part // whose time a computation is

	compute func(w *Weights, b *Processor)

	// An exchange packs and begins; done is called once, from another goroutine or at
	// once. After a success unpack puts what arrived where the next stage reads it.
	start  func(b *Batch, g Group, done func(error))
	unpack func(b *Batch)
}

// Part is what the time of a stage is counted as.
type Part uint8

// The parts of a step within its layers.
const (
	Projections Part = iota // of queries, keys, values and attention outputs, and their norm
	Attention               // rotation, cache writes, attention
	FFN                     // norm, feed-forward network or experts, residual
	Parts                   // how many there are
)

func (s *Stage) String() string { return s.Name }

// Exchange reports whether the stage is a collective.
func (s *Stage) Exchange() bool { return s.start != nil }

func compute(name string, part Part, f func(w *Weights, b *Processor)) *Stage {
	return &Stage{Name: name, Part: part, compute: f}
}

// allGather: every rank gives its tiles to all others.
func allGather(name string, tiles gatherTiles) *Stage {
	return &Stage{Name: name, unpack: func(b *Batch) { b.unpackGather(tiles) },
		start: func(b *Batch, g Group, done func(error)) {
			b.packGather(tiles)
			g.AllGather(collective.OpID(b.NextOp()), b.out[b.Rank], b.in, done)
		}}
}

// allToAll: every pair of ranks exchanges tiles of its own.
func allToAll(name string, tiles pairTiles) *Stage {
	return &Stage{Name: name, unpack: func(b *Batch) { b.unpackPairs(tiles) },
		start: func(b *Batch, g Group, done func(error)) {
			b.packPairs(tiles)
			g.AllToAll(collective.OpID(b.NextOp()), b.send, b.recv, done)
		}}
}

// sum: a reduction, which leaves its result where it is read.
func sum(name string, start func(b *Batch, g Group, done func(error))) *Stage {
	return &Stage{Name: name, unpack: func(*Batch) {}, start: start}
}

// when is the stage itself, or no stage.
func (s *Stage) when(applies bool) *Stage {
	if applies {
		return s
	}
	return nil
}

func either(which bool, yes, no *Stage) *Stage {
	if which {
		return yes
	}
	return no
}

// list leaves out the stages that do not apply.
func list(stages ...*Stage) []*Stage {
	var out []*Stage
	for _, s := range stages {
		if s != nil {
			out = append(out, s)
		}
	}
	return out
}
