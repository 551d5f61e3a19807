package layer

import "github.com/shoal-llm/shoal/collective"

// Stage is one entry of a layer's schedule: a computation ([Op]), which the backend runs on the
// socket's executor, or an exchange with the other ranks ([Exchange]).
type Stage interface {
	String() string
	when(applies bool) Stage // the stage itself, or nil
}

// Exchange is a collective of a layer. start packs the data of this rank and begins the operation.
// done is called once, either before start returns or from another goroutine. After a success,
// unpack copies the received data to where the next stage reads it.
type Exchange struct {
	name   string
	start  func(b *Batch, g Group, done func(error))
	unpack func(b *Batch)
}

func (x *Exchange) String() string { return x.name }

func (x *Exchange) when(applies bool) Stage { return when(x, applies) }

// allGather returns an exchange in which every rank sends the same tiles to all others.
func allGather(name string, tiles gatherTiles) *Exchange {
	return &Exchange{name: name, unpack: func(b *Batch) { b.unpackGather(tiles) },
		start: func(b *Batch, g Group, done func(error)) {
			b.packGather(tiles)
			g.AllGather(collective.OpID(b.NextOp()), b.out[b.Rank], b.in, done)
		}}
}

// allToAll returns an exchange in which every pair of ranks has tiles of its own.
func allToAll(name string, tiles pairTiles) *Exchange {
	return &Exchange{name: name, unpack: func(b *Batch) { b.unpackPairs(tiles) },
		start: func(b *Batch, g Group, done func(error)) {
			b.packPairs(tiles)
			g.AllToAll(collective.OpID(b.NextOp()), b.send, b.recv, done)
		}}
}

// sum returns a reduction. It writes its result where the next stage reads it, so it has no unpack
// step.
func sum(name string, start func(b *Batch, g Group, done func(error))) *Exchange {
	return &Exchange{name: name, unpack: func(*Batch) {}, start: start}
}

func when(s Stage, applies bool) Stage {
	if applies {
		return s
	}
	return nil
}

func either(which bool, yes, no Stage) Stage {
	if which {
		return yes
	}
	return no
}

// list drops the stages that do not apply.
func list(stages ...Stage) []Stage {
	var out []Stage
	for _, s := range stages {
		if s != nil {
			out = append(out, s)
		}
	}
	return out
}

// Schedule is the stages of a layer in one step: runs of operations with an exchange between each
// two runs.
type Schedule struct {
	runs      [][]Op // one more than exchanges; a run may be empty
	uses      []int  // of each run: the number of operations that use caches
	exchanges []*Exchange
}

// scheduled divides stages into runs at their exchanges.
func scheduled(stages []Stage) *Schedule {
	s := &Schedule{runs: make([][]Op, 1), uses: make([]int, 1)}
	for _, stage := range stages {
		switch x := stage.(type) {
		case Op:
			last := len(s.runs) - 1
			s.runs[last] = append(s.runs[last], x)
			s.uses[last] += x.usesCaches()
		case *Exchange:
			s.exchanges, s.runs, s.uses = append(s.exchanges, x), append(s.runs, nil), append(s.uses, 0)
		}
	}
	return s
}
