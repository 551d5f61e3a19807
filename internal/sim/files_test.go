package sim

import (
	"crypto/sha256"
	"time"

	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/topology"
)

// file is a block of the prefix cache on a machine's disk: rows of the heads that its node had when
// it was written. It is read by key and heads, so a node that has other heads by now misses it.
type file struct {
	at    int
	heads topology.Range
	cells [heads][]cell
}

// write stores block id, the i-th of keys (as in plan.Run), in a file. It does so later, if the
// process still runs.
func (n *node) write(e *epoch, id uint64, keys []plan.Key, i int) {
	b := n.blocks[id]
	if !n.w.cfg.files || e == nil || b == nil || len(keys) < i+2 {
		return
	}
	name, f := string(keys[i+1][:]), &file{at: b.at, heads: e.heads(), cells: b.cells}
	n.w.after(n.process, n.w.between(0, 20*time.Millisecond), func() {
		if n.w.files[n.slot] == nil {
			n.w.files[n.slot] = map[string]*file{}
		}
		n.w.files[n.slot][name] = f
		n.w.cover[BlockWritten]++
	})
}

// file returns a block with all heads that this node reads now; nil: none, or a damaged one.
func (n *node) file(e *epoch, name string, at int) *file {
	f, own := n.w.files[n.slot][name], e.heads()
	if f == nil || f.at != at || f.heads.Lo > own.Lo || f.heads.Hi < own.Hi {
		return nil
	}
	if n.w.chance(10) {
		delete(n.w.files[n.slot], name)
		n.w.cover[FileMissed]++
		return nil
	}
	return f
}

// look returns how many of the first blocks are in files here.
func (n *node) look(e *epoch, keys []byte, from int) (there int) {
	for i := 1; i < len(keys)/sha256.Size; i++ {
		f, own := n.w.files[n.slot][string(keys[i*sha256.Size:(i+1)*sha256.Size])], e.heads()
		if f == nil || f.at != from+i-1 || f.heads.Lo > own.Lo || f.heads.Hi < own.Hi {
			break
		}
		there++
	}
	return there
}
