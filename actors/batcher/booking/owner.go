package booking

import (
	"fmt"

	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/layered"
)

// Rank holds the values of a socket that determine the choice of an owner.
type Rank struct {
	ID        string
	Budget    int64 // bytes for the cache
	Room      int64 // bytes that are free, or can be freed at once
	Heads     int   // KV heads or units that it computes
	Block     int64 // size of a shared block
	Sequences int   // number of sequences that it owns
}

// Choice is how a sequence can run: its owner, the bytes on each socket, and how its prompt is read. If
// it cannot, Why describes the socket that lacks least.
type Choice struct {
	Owner int
	Need  []int64
	Shape layered.Shape
	Why   string
}

// Choose finds the owner for a sequence. Only able sockets qualify, and the sequence must fit on
// every socket. It prefers the most free bytes, then the fewest sequences, then the lowest rank.
func (d Demand) Choose(g kvcache.Geometry, ranks []Rank, able func(owner int) bool) Choice {
	c := Choice{Owner: -1, Shape: d.Shape}
	var shortest int64
	for o := range ranks {
		if !able(o) || d.Shared > 0 && g.Units > 0 && ranks[o].Heads == 0 { // it has no rows of the shared blocks
			continue
		}
		need := d.need(g, ranks, o)
		at, short := lacks(ranks, need)
		switch {
		case short == 0 && (c.Owner < 0 || better(&ranks[o], need[o], &ranks[c.Owner], c.Need[c.Owner])):
			c.Owner, c.Need = o, need
		case short > 0 && (c.Why == "" || short < shortest):
			shortest = short
			r := &ranks[at]
			c.Why = fmt.Sprintf("needs %d cache bytes on %s, %d of %d are free", need[at], r.ID, r.Room, r.Budget)
		}
	}
	if c.Owner >= 0 {
		c.Why = ""
	}
	return c
}

// Fits reports whether a sequence fits on every socket with this owner.
func (d Demand) Fits(g kvcache.Geometry, ranks []Rank, owner int) bool {
	_, short := lacks(ranks, d.need(g, ranks, owner))
	return short == 0
}

// need returns the bytes that a sequence needs on each socket.
func (d Demand) need(g kvcache.Geometry, ranks []Rank, owner int) []int64 {
	need := make([]int64, len(ranks))
	for i := range need {
		need[i] = d.Bytes(g, ranks[i].Heads, i == owner, ranks[i].Block)
	}
	return need
}

// lacks returns the socket that lacks the most bytes for need, and these bytes; 0: it fits everywhere.
func lacks(ranks []Rank, need []int64) (at int, bytes int64) {
	for i := range ranks {
		if short := need[i] - ranks[i].Room; short > bytes {
			at, bytes = i, short
		}
	}
	return at, bytes
}

// better reports whether a is a better owner than b, for a sequence that needs these bytes there.
func better(a *Rank, needA int64, b *Rank, needB int64) bool {
	if freeA, freeB := a.Room-needA, b.Room-needB; freeA != freeB {
		return freeA > freeB
	}
	return a.Sequences < b.Sequences
}
