package plan

import (
	"fmt"
	"time"

	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/lora"
	"github.com/shoal-llm/shoal/internal/engine/pooling"
	"github.com/shoal-llm/shoal/internal/proto"
)

// Encode returns the wire form of a plan.
func Encode(p *Plan, deadline time.Duration) *proto.StepRequest {
	m := &proto.StepRequest{Epoch: p.Epoch, Step: p.Step, Release: p.Release, DropReplica: p.DropReplica, DropStates: p.DropStates,
		Evict: p.Evict, DropExtras: p.DropExtras, Keep: encodeKeep(p.Keep),
		Passes: uint32(p.Passes), ThreadShift: uint32(p.ThreadShift), MicroBatches: uint32(p.MicroBatches),
		DeadlineMillis: uint32(deadline.Milliseconds())}
	for _, x := range p.Index {
		m.Index = append(m.Index, &proto.Index{Seq: x.Seq, From: uint32(x.From), Pieces: uint32(x.Pieces)})
	}
	for _, w := range p.Sweeps {
		m.Sweeps = append(m.Sweeps, &proto.Sweep{Seq: w.Seq, FromLayer: uint32(w.From), ToLayer: uint32(w.To), Start: uint32(w.Start),
			Tokens: convert[uint32](w.Tokens), Sample: w.Sample})
	}
	for i := range p.Open {
		m.Open = append(m.Open, encodeOpen(&p.Open[i]))
	}
	for _, k := range p.Copy {
		m.Copy = append(m.Copy, &proto.Copy{Seq: k.Seq, Replica: uint32(k.Replica)})
	}
	for _, f := range p.Spill {
		m.Spill = append(m.Spill, &proto.Spill{Seq: f.Seq, Blocks: uint32(f.Blocks)})
	}
	for i := range p.Decode {
		m.Chunks = append(m.Chunks, encodeRun(&p.Decode[i]))
	}
	for i := range p.Chunks {
		m.Chunks = append(m.Chunks, encodePrefill(&p.Chunks[i]))
	}
	return m
}

func encodeOpen(o *Open) *proto.Open {
	var index []byte
	if o.IndexKey != (Key{}) {
		index = o.IndexKey[:]
	}
	return &proto.Open{Seq: o.Seq, Owner: uint32(o.Owner), Policy: o.Policy.Spec(), Sampling: EncodeSampling(o.Sampling),
		PromptTokens: uint32(o.Read), SampledBefore: uint32(o.Sampled), TailTokens: uint32(o.Tail), ReserveTokens: uint32(o.Reserve),
		Resume: convert[uint32](o.Resume), Replica: uint32(o.Replica + 1), Fork: o.Fork, Pool: uint32(o.Pool), Shared: o.Shared,
		Prefix: convert[uint32](o.Prefix), Adapter: o.Adapter.Bytes(), PassRows: uint32(o.PassRows),
		ResidualInFile: o.InFile, IndexKey: index, Take: o.Take}
}

// encodeRun encodes the common fields of decode and prefill, and decode's own fields.
func encodeRun(r *Run) *proto.Chunk {
	return &proto.Chunk{Seq: r.Seq, Start: uint32(r.Start), Tokens: convert[uint32](r.Tokens), Sample: r.Sample,
		Accepted: uint32(r.Accepted), Draft: uint32(r.Draft), Snapshot: r.Snapshot, Known: uint32(r.Known)}
}

func encodePrefill(r *Run) *proto.Chunk {
	m := encodeRun(r)
	m.Prefill, m.Last, m.Next = true, r.Last, uint32(r.Next+1)
	m.SaveFrom, m.Save, m.Keys, m.Sums = uint32(r.SaveFrom), r.Save, EncodeKeys(nil, r.Keys), r.Sums
	if r.PromptLogprobs >= 0 {
		m.WantPromptLogprobs, m.PromptLogprobs = true, int32(r.PromptLogprobs)
	}
	return m
}

// EncodeRelease returns the wire form of an order between steps: keep blocks of
// sequences, release the sequences, and evict blocks.
func EncodeRelease(epoch uint32, keep []Keep, seqs, evict []uint64) *proto.ReleaseRequest {
	return &proto.ReleaseRequest{Epoch: epoch, Seqs: seqs, Evict: evict, Keep: encodeKeep(keep)}
}

func encodeKeep(list []Keep) (out []*proto.Keep) {
	for _, k := range list {
		out = append(out, &proto.Keep{Seq: k.Seq, SaveFrom: uint32(k.From), Save: k.Blocks, Keys: EncodeKeys(nil, k.Keys), Snapshot: k.Snapshot})
	}
	return out
}

// EncodeKeys appends the bytes of keys.
func EncodeKeys(out []byte, keys []Key) []byte {
	for i := range keys {
		out = append(out, keys[i][:]...)
	}
	return out
}

// Decode reads the wire form of a plan. It parses each policy and each set of sampling
// parameters, once; it checks their form but not whether the numbers fit the model. runs has the
// runs of Decode, then those of Chunks; they share their memory.
func Decode(m *proto.StepRequest, parse func(spec string) (*kvcache.Policy, error)) (p Plan, runs []Run, err error) {
	p = Plan{Epoch: m.Epoch, Step: m.Step, Release: m.Release, DropReplica: m.DropReplica, DropStates: m.DropStates,
		Evict: m.Evict, DropExtras: m.DropExtras, Passes: int(m.Passes), ThreadShift: int(m.ThreadShift), MicroBatches: int(m.MicroBatches)}
	if p.Keep, err = DecodeKeep(m.Keep); err != nil {
		return p, nil, err
	}
	for _, x := range m.Index {
		p.Index = append(p.Index, Index{Seq: x.GetSeq(), From: int(x.GetFrom()), Pieces: int(x.GetPieces())})
	}
	for _, w := range m.Sweeps {
		p.Sweeps = append(p.Sweeps, Sweep{Seq: w.GetSeq(), From: int(w.GetFromLayer()), To: int(w.GetToLayer()), Start: int(w.GetStart()),
			Tokens: convert[int32](w.GetTokens()), Sample: w.GetSample()})
	}
	for _, o := range m.Open {
		open, err := decodeOpen(o, parse)
		if err != nil {
			return p, nil, err
		}
		p.Open = append(p.Open, open)
	}
	for _, k := range m.Copy {
		p.Copy = append(p.Copy, Copy{Seq: k.GetSeq(), Replica: int(k.GetReplica())})
	}
	for _, f := range m.Spill {
		p.Spill = append(p.Spill, Spill{Seq: f.GetSeq(), Blocks: int(f.GetBlocks())})
	}
	var decode int
	if runs, decode, err = decodeRuns(m.Chunks); err != nil {
		return p, nil, err
	}
	p.Decode, p.Chunks = runs[:decode:decode], runs[decode:]
	return p, runs, nil
}

func decodeOpen(m *proto.Open, parse func(spec string) (*kvcache.Policy, error)) (Open, error) {
	policy, err := parse(m.GetPolicy())
	if err != nil {
		return Open{}, fmt.Errorf("plan: sequence %d: %w", m.GetSeq(), err)
	}
	adapter, err := lora.IDOf(m.GetAdapter())
	if err != nil {
		return Open{}, fmt.Errorf("plan: sequence %d: %w", m.GetSeq(), err)
	}
	var index Key
	if n := copy(index[:], m.GetIndexKey()); n != len(m.GetIndexKey()) || n != 0 && n != len(index) {
		return Open{}, fmt.Errorf("plan: sequence %d: the key of its index has %d bytes, not %d", m.GetSeq(), len(m.GetIndexKey()), len(index))
	}
	params := DecodeSampling(m.GetSampling())
	if m.GetPool() > uint32(pooling.CLS) {
		return Open{}, fmt.Errorf("plan: sequence %d: pooling method %d is not known", m.GetSeq(), m.GetPool())
	}
	return Open{Seq: m.Seq, Owner: int(m.Owner), Policy: policy, Sampling: &params,
			Read: int(m.PromptTokens), Sampled: int(m.SampledBefore), Tail: int(m.TailTokens), Reserve: int(m.ReserveTokens),
			Resume: convert[int32](m.Resume), Replica: int(m.Replica) - 1, Fork: m.Fork, Pool: pooling.Method(m.GetPool()), Shared: m.Shared,
			Prefix: convert[int32](m.Prefix), Adapter: adapter, PassRows: int(m.PassRows), InFile: m.ResidualInFile, IndexKey: index, Take: m.Take},
		nil
}

// decodeRuns returns the runs of decode, whose number it also returns, and then those of prefill. All
// their tokens are in one slice.
func decodeRuns(list []*proto.Chunk) (runs []Run, decode int, err error) {
	tokens := 0
	for _, m := range list {
		tokens += len(m.GetTokens())
		if !m.GetPrefill() {
			decode++
		}
	}
	all := make([]int32, 0, tokens)
	runs = make([]Run, len(list))
	nextDecode, nextPrefill := 0, decode
	for _, m := range list {
		first := len(all)
		for _, t := range m.GetTokens() {
			all = append(all, int32(t))
		}
		r := Run{Seq: m.GetSeq(), Start: int(m.GetStart()), Tokens: all[first:len(all):len(all)], Sample: m.GetSample(),
			Accepted: int(m.GetAccepted()), Draft: int(m.GetDraft()), Prefill: m.GetPrefill(), Last: m.GetLast(), PromptLogprobs: None,
			Next: int32(m.GetNext()) - 1, SaveFrom: int(m.GetSaveFrom()), Save: m.GetSave(), Sums: m.GetSums(), Snapshot: m.GetSnapshot(),
			Known: int(m.GetKnown())}
		if m.GetWantPromptLogprobs() {
			if r.PromptLogprobs = int(m.GetPromptLogprobs()); r.PromptLogprobs < 0 {
				return nil, 0, fmt.Errorf("plan: sequence %d has prompt logprobs %d: the number must be 0 or more",
					r.Seq, r.PromptLogprobs)
			}
		}
		if r.Keys, err = decodeKeys(r.Seq, m.GetKeys(), len(r.Save)); err != nil {
			return nil, 0, err
		}
		at := &nextDecode
		if r.Prefill {
			at = &nextPrefill
		}
		runs[*at] = r
		*at++
	}
	return runs, decode, nil
}

// DecodeKeep reads the blocks that sequences leave to the prefix cache.
func DecodeKeep(list []*proto.Keep) (out []Keep, err error) {
	for _, m := range list {
		k := Keep{Seq: m.GetSeq(), From: int(m.GetSaveFrom()), Blocks: m.GetSave(), Snapshot: m.GetSnapshot()}
		if k.Keys, err = decodeKeys(k.Seq, m.GetKeys(), len(k.Blocks)); err != nil {
			return nil, err
		}
		out = append(out, k)
	}
	return out, nil
}

// decodeKeys reads either no keys, or one more than there are blocks.
func decodeKeys(seq uint64, b []byte, blocks int) (keys []Key, err error) {
	const size = len(Key{})
	if len(b) == 0 {
		return nil, nil
	}
	if len(b) != size*(blocks+1) {
		return nil, fmt.Errorf("plan: sequence %d has %d bytes of keys for %d blocks: it must have none, or %d for each block and the one before",
			seq, len(b), blocks, size)
	}
	for ; len(b) > 0; b = b[size:] {
		keys = append(keys, Key(b[:size]))
	}
	return keys, nil
}

// convert changes the type of token ids, between memory (int32) and the wire (uint32).
func convert[To, From int32 | uint32](tokens []From) []To {
	if len(tokens) == 0 {
		return nil
	}
	out := make([]To, len(tokens))
	for i, t := range tokens {
		out[i] = To(t)
	}
	return out
}
