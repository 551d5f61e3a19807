package sim

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"time"

	"github.com/shoal-llm/shoal/actors/batcher"
	coord "github.com/shoal-llm/shoal/internal/coordinator"
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/proto"
)

// Blocks of the prefix cache that arrive from files, or from the owners of answers that filled
// them, while steps run. The socket's goroutines for that are modelled.

// bring is core.Disk: all sockets are asked, and the smallest answer counts.
func (c *coordinator) bring(d batcher.Disk) {
	g := c.serving
	tell := func(blocks int) { c.post(func() { c.step(batcher.DiskDone{Number: d.Number, Blocks: blocks}) }) }
	if g == nil || g.place.Epoch != c.placed {
		tell(0)
		return
	}
	r := coord.PrefixRequest(c.placed, d)
	least, left := len(d.Keys), len(g.hosts)
	for _, h := range g.hosts {
		c.w.ask(c.process, h.process, time.Duration(d.Millis)*time.Millisecond, func(reply func(any, error)) {
			h.take(func() { h.bring(r, reply) })
		}, func(v any, err error) {
			n, _ := v.(int)
			if err != nil {
				n = 0
			}
			least = min(least, n)
			if left--; left == 0 {
				if d.Seq != 0 && least < len(d.Keys) {
					c.w.cover[AnswerGivenUp]++
				}
				tell(least)
			}
		})
	}
}

var errNoRows = errors.New("socket: no rows of the block")

// bring loads this socket's heads of the blocks, one block after the other.
func (n *node) bring(r *proto.PrefixRequest, reply func(any, error)) {
	defer n.fenced("blocks", r.Epoch)()
	e, count := n.epoch, len(r.Keys)/sha256.Size-1
	switch {
	case e == nil || r.Epoch != n.machine.Epoch:
		reply(0, nil)
		return
	case len(r.Blocks) == 0 && e.heads().Len() == 0:
		reply(count, nil)
		return
	case len(r.Blocks) == 0:
		reply(n.look(e, r.Keys, int(r.From)), nil)
		return
	}
	effects, err := n.machine.Restore(r)
	if err != nil {
		n.stale(err)
		reply(0, err)
		return
	}
	if len(effects) > 0 {
		n.exec(0, func() { n.do(nil, effects) })
	}
	if e.heads().Len() == 0 {
		reply(len(r.Blocks), nil)
		return
	}
	n.exec(0, func() {
		for _, id := range r.Blocks {
			n.coming[id] = true
		}
	})
	var next func(i int)
	next = func(i int) {
		if i == len(r.Blocks) {
			reply(i, nil)
			return
		}
		n.source(e, r, i, func(rows [heads][]cell, err error) {
			if err != nil {
				reply(i, nil)
				return
			}
			n.exec(10*time.Microsecond, func() {
				if err := n.arrive(e, r.Blocks[i], int(r.From)+i, rows); err != nil {
					reply(i, nil)
					return
				}
				if r.Seq != 0 {
					n.w.cover[BlockBrought]++
					n.write(e, r.Blocks[i], []plan.Key{plan.Key(r.Keys[i*sha256.Size:]), plan.Key(r.Keys[(i+1)*sha256.Size:])}, 0)
				} else {
					n.w.cover[BlockRead]++
				}
				next(i + 1)
			})
		})
	}
	next(0)
}

// source fetches the rows of a block.
func (n *node) source(e *epoch, r *proto.PrefixRequest, i int, done func([heads][]cell, error)) {
	at := int(r.From) + i
	if r.Seq == 0 {
		n.w.after(n.process, n.w.between(0, 10*time.Millisecond), func() {
			f := n.file(e, string(r.Keys[(i+1)*sha256.Size:(i+2)*sha256.Size]), at)
			if f == nil {
				done([heads][]cell{}, errNoRows)
				return
			}
			done(f.cells, nil)
		})
		return
	}
	owner := n.w.nodes[e.peers[r.Owner].slot]
	n.w.ask(n.process, e.peers[r.Owner], 30*time.Millisecond, func(answer func(any, error)) {
		owner.give(e, r.Seq, at, answer)
	}, func(v any, err error) {
		rows, _ := v.([heads][]cell)
		done(rows, err)
	})
}

// give answers another socket of the same epoch; the rows are posted in the epoch's group.
func (n *node) give(e *epoch, seq uint64, at int, answer func(any, error)) {
	if n.process != e.peers[n.rankIn(e)] || n.epoch == nil || n.epoch.place.Epoch != e.place.Epoch || n.epoch.of != e.of {
		return
	}
	n.exec(10*time.Microsecond, func() {
		q, lo, hi := n.seqs[seq], at*tensor.BlockSlots, (at+1)*tensor.BlockSlots
		if q == nil || q.own.tokens == 0 || len(q.own.slots[0]) < hi {
			return // it is asked again if they are still needed
		}
		var rows [heads][]cell
		for h := range heads {
			rows[h] = append([]cell(nil), q.own.slots[h][lo:hi]...)
		}
		answer(rows, nil)
	})
}

func (n *node) rankIn(e *epoch) int {
	for rank, p := range e.peers {
		if p == n.process {
			return rank
		}
	}
	return e.rank
}

// arrive stores this socket's heads of a block, unless it was evicted meanwhile.
func (n *node) arrive(e *epoch, id uint64, at int, rows [heads][]cell) error {
	if !n.coming[id] {
		return errNoRows
	}
	if n.blocks[id] == nil { // otherwise a prompt has written it meanwhile
		own := e.heads()
		b := &block{at: at, holders: 1}
		for h := own.Lo; h < own.Hi; h++ {
			b.cells[h] = rows[h]
		}
		bytes, _ := kvcache.SegmentBytes(geometry, own.Len())
		if err := n.memory.resize(&b.bytes, bytes); err != nil {
			return fmt.Errorf("socket: block %d: %w", id, err)
		}
		n.blocks[id] = b
	}
	delete(n.coming, id)
	return nil
}
