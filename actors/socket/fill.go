package socket

import (
	"fmt"

	"shoal/kvcache"
	"shoal/sampler"
	"shoal/tensor"
)

// Fill opens sequences as if prompts of Tokens tokens, with random keys and values,
// had been read under Policy ("": full): long contexts can be measured without
// reading them first. Only a socket that is alone takes it.
type Fill struct {
	Epoch  uint32
	Seqs   []uint64
	Tokens int
	Policy string
	Reply  func(error)
}

func (e *epoch) fill(m *Fill) error {
	if len(e.place.Slices) != 1 {
		return fmt.Errorf("socket: caches are filled on one socket, not on %d", len(e.place.Slices))
	}
	if m.Tokens < 1 || m.Tokens >= e.config.MaxPositions {
		return fmt.Errorf("socket: fill of %d tokens: want 1 to %d", m.Tokens, e.config.MaxPositions-1)
	}
	policy, err := kvcache.Parse(m.Policy)
	if err != nil {
		return err
	}
	template := e.noiseBlock()
	for _, id := range m.Seqs {
		if e.seqs[id] != nil {
			return fmt.Errorf("socket: sequence %d is open already", id)
		}
		q := &sequence{id: id, buddy: -1, prompt: m.Tokens, fresh: m.Tokens, read: m.Tokens, policy: policy, history: new(sampler.History)}
		q.params = sampler.Default()
		q.params.Temperature = 0
		if err := e.fillSequence(q, template); err != nil {
			q.release()
			return fmt.Errorf("socket: sequence %d: %w", id, err)
		}
		e.seqs[id] = q
	}
	return nil
}

func (e *epoch) fillSequence(q *sequence, template []byte) error {
	g := e.geometry
	heads := tensor.Span{Lo: 0, Hi: g.KVHeads}
	q.part = kvcache.NewPrefill(e.arena, g, heads)
	if err := q.part.Reserve(q.prompt); err != nil {
		return err
	}
	k := make([]float32, g.Layout.KDim)
	e.pool.Run(g.Layers*g.KVHeads, func(i int) {
		layer, head := i/g.KVHeads, i%g.KVHeads
		for _, b := range q.part.Blocks(layer, head) {
			copy(b, template)
		}
		q.part.Write(layer, head, q.prompt-1, k, k[:g.Layout.VDim])
	})
	q.part.Commit(q.prompt)
	var err error
	if q.seen, err = kvcache.NewObservation(e.arena, g, heads, q.policy, q.prompt); err != nil {
		return err
	}
	adopted := heads
	if !q.policy.Identity() {
		adopted = noHeads
	}
	q.own = kvcache.NewStore(e.arena, g, q.policy)
	if err := q.own.Open(q.prompt, q.prompt, adopted); err != nil {
		return err
	}
	h := &handover{epoch: e, seqs: []*sequence{q}}
	for layer := range g.Layers {
		h.choose(layer)
		if err := h.finish(layer); err != nil {
			return err
		}
	}
	return h.seal()
}

// noiseBlock is one cache block of random keys and values.
func (e *epoch) noiseBlock() []byte {
	l := e.geometry.Layout
	block := make([]byte, l.BlockBytes())
	row := make([]float32, l.KDim+l.VDim)
	state := uint64(1)
	for slot := range tensor.BlockSlots {
		for i := range row {
			state = state*6364136223846793005 + 1442695040888963407
			row[i] = float32(state>>40)/(1<<23) - 1
		}
		l.Put(block, slot, row[:l.KDim], row[l.KDim:])
	}
	return block
}
