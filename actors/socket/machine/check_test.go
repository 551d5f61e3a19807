package machine

import (
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/engine/sampler"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/topology"
)

// checked returns a machine of rank 0 of 2. Sequence 1 decodes here under full after 130 tokens,
// the last two of them staged. Sequence 2 is a prompt under full, with 64 of 200 tokens read.
// Sequence 3 decodes one token a step on rank 1. Sequence 4 decodes under h2o. Sequence 9 was kept
// from an earlier epoch. Sequence 6 is a prompt that is read layer by layer: layers 1 and 2 of 5 have read
// 48 of 100 tokens, the first 16 of which were shared.
func checked(t *testing.T) *Machine {
	m := NewMachine()
	m.limits = Limits{Ranks: 2, Vocab: 100, Positions: 1000, Rows: 64, Layout: tensor.KVLayout{Type: tensor.BF16, KDim: 8, VDim: 8}}
	h2o := parsed(t, "h2o:recent=8,topk=8")
	m.seqs[1] = &Sequence{Replica: plan.None, Prompt: 100, Policy: kvcache.Full(), Read: 128, Staged: 2, HandedOver: true, Logprobs: plan.None}
	m.seqs[2] = &Sequence{Replica: plan.None, Prompt: 200, Policy: kvcache.Full(), Read: 64, Logprobs: plan.None}
	m.seqs[3] = &Sequence{Owner: 1, Replica: plan.None, Prompt: 100, Policy: h2o, Read: 100,
		HandedOver: true, oneToken: true, Logprobs: plan.None}
	m.seqs[4] = &Sequence{Replica: plan.None, Prompt: 100, Policy: h2o, Read: 100, HandedOver: true, Logprobs: plan.None}
	m.seqs[6] = &Sequence{Replica: plan.None, Prompt: 100, Policy: h2o, Read: 48, Logprobs: plan.None,
		swept: swept{pass: 32, first: 16, layers: topology.Range{Lo: 1, Hi: 3}}}
	m.limits.Layered, m.limits.Layers = true, 5
	m.blocks[11], m.blocks[12] = 0, 1
	m.kept[9] = &Kept{Prompt: 100, Tokens: 120, Staged: 1, Policy: kvcache.Full(), Layout: m.limits.Layout}
	return m
}

// TestEachRule: a plan that breaks one rule gets the message of that rule.
func TestEachRule(t *testing.T) {
	decode := func(p *plan.Plan) *plan.Run { return &p.Decode[0] }
	chunk := func(p *plan.Plan) *plan.Run {
		p.Chunks = []plan.Run{{Seq: 2, Start: 64, Tokens: make([]int32, 64), Prefill: true, PromptLogprobs: plan.None, Next: plan.None}}
		return &p.Chunks[0]
	}
	open := func(p *plan.Plan) *plan.Open {
		p.Open = []plan.Open{{Seq: 5, Read: 100, Policy: kvcache.Full(),
			Sampling: &sampler.Params{TopP: 1, RepetitionPenalty: 1, Logprobs: plan.None}, Replica: plan.None}}
		return &p.Open[0]
	}
	resume := func(p *plan.Plan, seq uint64, tokens int) *plan.Open {
		o := open(p)
		o.Seq, o.Resume = seq, make([]int32, tokens)
		return o
	}
	fork := func(p *plan.Plan, of uint64) *plan.Open {
		o := resume(p, 5, 100)
		o.Policy, o.Fork = parsed(t, "squeezed"), of
		return o
	}
	sweep := func(p *plan.Plan, from, to, start, tokens int) *plan.Sweep {
		p.Sweeps = []plan.Sweep{{Seq: 6, From: from, To: to, Start: start, Tokens: make([]int32, tokens)}}
		return &p.Sweeps[0]
	}
	layers := func(p *plan.Plan) *plan.Open {
		o := open(p)
		o.PassRows, o.Policy = 16, parsed(t, "h2o")
		return o
	}
	for want, edit := range map[string]func(m *Machine, p *plan.Plan){
		"of this model exchange more":   func(m *Machine, p *plan.Plan) { layers(p); m.limits.Layered = false },
		"and passes of no rows":         func(_ *Machine, p *plan.Plan) { o := layers(p); o.PassRows, o.InFile = 0, true },
		"passes of 65 tokens":           func(_ *Machine, p *plan.Plan) { layers(p).PassRows = 65 },
		"decodes a part of its prompt":  func(_ *Machine, p *plan.Plan) { layers(p).Tail = 1 },
		"full needs all layers at once": func(_ *Machine, p *plan.Plan) { layers(p).Policy = kvcache.Full() },
		"attention sums of 1 shared blocks": func(m *Machine, p *plan.Plan) {
			o := layers(p)
			m.sums[11] = true
			o.Shared, o.Prefix = []uint64{11}, make([]int32, 64)
		},
		"layers [1,3): it is not open": func(_ *Machine, p *plan.Plan) { sweep(p, 1, 3, 48, 32).Seq = 7 },
		"the step has 2 passes":        func(_ *Machine, p *plan.Plan) { sweep(p, 1, 3, 48, 32); p.Passes, p.Decode = 2, nil },
		"the step names the sequence twice": func(_ *Machine, p *plan.Plan) {
			sweep(p, 1, 3, 48, 32)
			p.Sweeps = append(p.Sweeps, p.Sweeps[0])
		},
		"its prompt is read in chunks":        func(_ *Machine, p *plan.Plan) { sweep(p, 1, 3, 64, 32).Seq = 2 },
		"[1,3): its prompt is complete":       func(m *Machine, p *plan.Plan) { sweep(p, 1, 3, 48, 32); m.seqs[6].HandedOver = true },
		"tokens [80,112) after 48 of 100":     func(_ *Machine, p *plan.Plan) { sweep(p, 1, 3, 80, 32) },
		"tokens [48,101) after 48 of 100":     func(_ *Machine, p *plan.Plan) { sweep(p, 1, 3, 48, 53) },
		"tokens [48,48) after 48":             func(_ *Machine, p *plan.Plan) { sweep(p, 1, 3, 48, 0) },
		"31 tokens are no whole passes of 32": func(_ *Machine, p *plan.Plan) { sweep(p, 1, 3, 48, 31) },
		"layers [1,3) have read 48":           func(_ *Machine, p *plan.Plan) { sweep(p, 1, 2, 48, 32) },
		"[4,5): 3 of 5 layers are read":       func(m *Machine, p *plan.Plan) { sweep(p, 4, 5, 16, 32); m.seqs[6].Read = 16 },
		"[3,6): 3 of 5 layers are read":       func(m *Machine, p *plan.Plan) { sweep(p, 3, 6, 16, 32); m.seqs[6].Read = 16 },
		"no layer begins with cache 3":        func(m *Machine, p *plan.Plan) { sweep(p, 1, 3, 48, 32); m.limits.Begins = []int{0, 1, 4} },
		"the layers from 2 on need":           func(m *Machine, p *plan.Plan) { sweep(p, 1, 3, 48, 32); m.limits.Later = 2 },
		"it samples before the last":          func(_ *Machine, p *plan.Plan) { sweep(p, 1, 3, 48, 52).Sample = true },
		"2 of 2 tokens at position 128 are known, samples true": func(_ *Machine, p *plan.Plan) {
			*decode(p) = plan.Run{Seq: 1, Start: 128, Tokens: []int32{1, 2}, Sample: true, Known: 2, PromptLogprobs: plan.None, Next: plan.None}
		},
		"1 of 2 tokens at position 128 are known, samples false": func(_ *Machine, p *plan.Plan) {
			*decode(p) = plan.Run{Seq: 1, Start: 128, Tokens: []int32{1, 2}, Known: 1, PromptLogprobs: plan.None, Next: plan.None}
		},
		"a prompt chunk has 1 known tokens":             func(_ *Machine, p *plan.Plan) { chunk(p).Known = 1 },
		"sequence 6: token 100, vocabulary":             func(_ *Machine, p *plan.Plan) { sweep(p, 1, 3, 48, 32).Tokens[3] = 100 },
		"a chunk at 64 of a prompt that is read layer":  func(m *Machine, p *plan.Plan) { chunk(p); m.seqs[2].swept.pass = 16 },
		"complete or read layer by layer":               func(_ *Machine, p *plan.Plan) { p.Index = []plan.Index{{Seq: 6, Pieces: 1}} },
		"":                                              func(*Machine, *plan.Plan) {},
		"sequence 2 has no cache to move to a file":     func(_ *Machine, p *plan.Plan) { p.Spill = []plan.Spill{{Seq: 2, Blocks: 1}} },
		"3 blocks must move to a file, the cache has 2": func(_ *Machine, p *plan.Plan) { p.Spill = []plan.Spill{{Seq: 1, Blocks: 3}} },
		"0 blocks must move to a file":                  func(_ *Machine, p *plan.Plan) { p.Spill = []plan.Spill{{Seq: 1}} },
		"step 5 has no rows":                            func(_ *Machine, p *plan.Plan) { p.Decode = nil },
		"5: 5 are open, as many":                        func(m *Machine, p *plan.Plan) { m.limits.Rows = 5; open(p) },
		"owner 2 of 2 ranks":                            func(_ *Machine, p *plan.Plan) { open(p).Owner = 2 },
		"the context holds 1 to 1000":                   func(_ *Machine, p *plan.Plan) { open(p).Read = 1001 },
		"100 and 901 tokens, the context holds 1000":    func(_ *Machine, p *plan.Plan) { open(p).Tail = 901 },
		"1 prompt tokens follow 2 sampled":              func(_ *Machine, p *plan.Plan) { o := open(p); o.Tail, o.Sampled = 1, 2 },
		"101 of 100 prompt tokens were sampled":         func(_ *Machine, p *plan.Plan) { open(p).Sampled = 101 },
		"top_p":                                         func(_ *Machine, p *plan.Plan) { open(p).Sampling.TopP = 2 },
		"a replica on 1 of a cache that does not exist": func(_ *Machine, p *plan.Plan) { open(p).Replica = 1 },
		"token 100, vocabulary is 100":                  func(_ *Machine, p *plan.Plan) { resume(p, 9, 120).Resume[3] = 100 },
		"policy full cannot fork":                       func(_ *Machine, p *plan.Plan) { fork(p, 1).Policy = kvcache.Full() },
		"cache of 100 tokens: its prompt has 99":        func(_ *Machine, p *plan.Plan) { fork(p, 1).Read = 99 },
		"a fork has no replica":                         func(_ *Machine, p *plan.Plan) { fork(p, 1).Replica = 1 },
		"it is the same sequence":                       func(_ *Machine, p *plan.Plan) { fork(p, 5) },
		"that sequence is not open":                     func(_ *Machine, p *plan.Plan) { fork(p, 7) },
		"its prompt is not complete":                    func(_ *Machine, p *plan.Plan) { fork(p, 2) },
		"it is on rank 1, not 0":                        func(_ *Machine, p *plan.Plan) { fork(p, 3) },
		"its prompt has 100 tokens, not 99": func(_ *Machine, p *plan.Plan) {
			o := fork(p, 4)
			o.Read, o.Resume = 99, o.Resume[1:]
		},
		"its policy is h2o":                               func(_ *Machine, p *plan.Plan) { fork(p, 4) },
		"resumes with 99 tokens after a prompt of 100":    func(_ *Machine, p *plan.Plan) { resume(p, 9, 99) },
		"resumes with a replica on 0 of 2 ranks, owner 0": func(_ *Machine, p *plan.Plan) { resume(p, 9, 120).Replica = 0 },
		"nothing of it was kept":                          func(_ *Machine, p *plan.Plan) { resume(p, 8, 120) },
		"resumes under knorm":                             func(_ *Machine, p *plan.Plan) { resume(p, 9, 120).Policy = parsed(t, "knorm") },
		"resumes with 119 tokens; 120 are kept":           func(_ *Machine, p *plan.Plan) { resume(p, 9, 119) },
		"1 shared blocks for 63 tokens": func(_ *Machine, p *plan.Plan) {
			o := open(p)
			o.Shared, o.Prefix = []uint64{11}, make([]int32, 63)
		},
		"takes at most 63 tokens": func(_ *Machine, p *plan.Plan) {
			o := open(p)
			o.Read, o.Shared, o.Prefix = 64, []uint64{11}, make([]int32, 64)
		},
		"resumes with a cache, and begins with 1": func(_ *Machine, p *plan.Plan) {
			o := resume(p, 9, 120)
			o.Shared, o.Prefix = []uint64{11}, make([]int32, 64)
		},
		"block 11 has no snapshot": func(m *Machine, p *plan.Plan) {
			m.limits.Recurrent = true
			o := open(p)
			o.Shared, o.Prefix = []uint64{11}, make([]int32, 64)
		},
		"block 12 is not a block 0": func(_ *Machine, p *plan.Plan) {
			o := open(p)
			o.Shared, o.Prefix = []uint64{12}, make([]int32, 64)
		},
		"rows are on one of 2 sockets": func(_ *Machine, p *plan.Plan) { p.Keep = []plan.Keep{{Seq: 1, Blocks: []uint64{13}}} },
		"prefix cache: its prompt": func(m *Machine, p *plan.Plan) {
			m.limits.Ranks, p.Keep = 1, []plan.Keep{{Seq: 2, Blocks: []uint64{13}}}
		},
		"prefix cache: under h2o": func(m *Machine, p *plan.Plan) {
			m.limits.Ranks, p.Keep = 1, []plan.Keep{{Seq: 4, Blocks: []uint64{13}}}
		},
		"130 tokens fill 2 blocks": func(m *Machine, p *plan.Plan) {
			m.limits.Ranks, p.Keep = 1, []plan.Keep{{Seq: 1, From: 2, Blocks: []uint64{13}}}
		},
		"block 11 exists already": func(m *Machine, p *plan.Plan) {
			m.limits.Ranks, p.Keep = 1, []plan.Keep{{Seq: 1, Blocks: []uint64{11}}}
		},
		"copied after 64 tokens, not after block 1": func(m *Machine, p *plan.Plan) {
			m.limits.Ranks, m.seqs[1].copied, p.Keep = 1, 64, []plan.Keep{{Seq: 1, Blocks: []uint64{13, 14}, Snapshot: 14}}
		},
		"copied after 0 tokens, not after block -1": func(m *Machine, p *plan.Plan) {
			m.limits.Ranks, p.Keep = 1, []plan.Keep{{Seq: 1, Snapshot: 14}}
		},
		"block 13, for its recurrent states, is not its block 1": func(m *Machine, p *plan.Plan) {
			m.limits.Ranks, m.seqs[1].copied, p.Keep = 1, 128, []plan.Keep{{Seq: 1, Blocks: []uint64{13, 14}, Snapshot: 13}}
		},
		"block 11, for its recurrent states, is not its block 1": func(m *Machine, p *plan.Plan) {
			m.limits.Ranks, m.seqs[1].copied, p.Keep = 1, 128, []plan.Keep{{Seq: 1, From: 1, Blocks: []uint64{0}, Snapshot: 11}}
		},
		"block 11 has a snapshot already": func(m *Machine, p *plan.Plan) {
			m.limits.Ranks, m.seqs[1].copied, m.snapshots[11], p.Keep = 1, 64, true, []plan.Keep{{Seq: 1, From: 1, Snapshot: 11}}
		},
		"saves a snapshot, but the model has no": func(_ *Machine, p *plan.Plan) { decode(p).Snapshot = true },
		"a decode row saves 1 blocks":            func(_ *Machine, p *plan.Plan) { decode(p).Save = []uint64{13} },
		"128 tokens fill 2":                      func(_ *Machine, p *plan.Plan) { c := chunk(p); c.SaveFrom, c.Save = 2, []uint64{13} },
		"block 11 is block 0 of a text":          func(_ *Machine, p *plan.Plan) { c := chunk(p); c.SaveFrom, c.Save = 1, []uint64{11} },
		"attention sums, which full": func(_ *Machine, p *plan.Plan) {
			c := chunk(p)
			c.SaveFrom, c.Save, c.Sums = 1, []uint64{13}, true
		},
		"attention sums, but it names no block": func(m *Machine, p *plan.Plan) { m.seqs[2].Policy = m.seqs[4].Policy; chunk(p).Sums = true },
		"not the end of its block 0": func(m *Machine, p *plan.Plan) {
			m.seqs[2].Policy = m.seqs[4].Policy
			c := chunk(p)
			c.Save, c.Sums = []uint64{11}, true
		},
		"but the model has no recurrent states": func(_ *Machine, p *plan.Plan) {
			c := chunk(p)
			c.SaveFrom, c.Save, c.Snapshot = 1, []uint64{13}, true
		},
		"a snapshot, but it names no block": func(m *Machine, p *plan.Plan) { m.limits.Recurrent = true; chunk(p).Snapshot = true },
		"but block 11 has one": func(m *Machine, p *plan.Plan) {
			m.limits.Recurrent, m.snapshots[11] = true, true
			c := chunk(p)
			c.Save, c.Snapshot = []uint64{11}, true
		},
		"a snapshot at the end of 128 tokens": func(m *Machine, p *plan.Plan) {
			m.limits.Recurrent = true
			c := chunk(p)
			c.Save, c.Snapshot = []uint64{11}, true
		},
		"room for 65536": func(_ *Machine, p *plan.Plan) {
			p.Decode[0].Tokens = make([]int32, 800)
			p.Decode[0].PromptLogprobs = 99
		},
		"which is not open":            func(_ *Machine, p *plan.Plan) { decode(p).Seq = 7 },
		"names sequence 1 twice":       func(_ *Machine, p *plan.Plan) { p.Decode = append(p.Decode, p.Decode[0]) },
		"0 tokens from position 130":   func(_ *Machine, p *plan.Plan) { decode(p).Tokens = nil },
		"a draft of 16 tokens":         func(_ *Machine, p *plan.Plan) { decode(p).Draft = 16 },
		"101 log-probabilities":        func(_ *Machine, p *plan.Plan) { chunk(p).PromptLogprobs = 101 },
		"the next is 100":              func(_ *Machine, p *plan.Plan) { c := chunk(p); c.PromptLogprobs, c.Next = 1, 100 },
		"[65,129), but 64 of 200":      func(_ *Machine, p *plan.Plan) { chunk(p).Start = 65 },
		"ends at 128 of 200":           func(_ *Machine, p *plan.Plan) { chunk(p).Last = true },
		"chunk accepts 1 sampled":      func(_ *Machine, p *plan.Plan) { chunk(p).Accepted = 1 },
		"position 64, but 64 of 200":   func(_ *Machine, p *plan.Plan) { d := decode(p); d.Seq, d.Start = 2, 64 },
		"last=true, which is for":      func(_ *Machine, p *plan.Plan) { decode(p).Last = true },
		"accepts 3 tokens":             func(_ *Machine, p *plan.Plan) { d := decode(p); d.Accepted, d.Start = 3, 131 },
		"position 129, but 128 tokens": func(_ *Machine, p *plan.Plan) { decode(p).Start = 129 },
		"decode one token a step": func(_ *Machine, p *plan.Plan) {
			*decode(p) = plan.Run{Seq: 3, Start: 100, Tokens: []int32{1, 2}, PromptLogprobs: plan.None}
		},
		"token 4294967295, vocabulary":       func(_ *Machine, p *plan.Plan) { decode(p).Tokens[0] = -1 },
		"3 micro-batches through the layers": func(_ *Machine, p *plan.Plan) { p.MicroBatches = 3 },
		"at most 16 are possible":            func(_ *Machine, p *plan.Plan) { p.Passes = 17 },
		"it also computes 1 indexes":         func(_ *Machine, p *plan.Plan) { p.Passes, p.Index = 2, make([]plan.Index, 1) },
		"it also makes 1 replicas":           func(_ *Machine, p *plan.Plan) { p.Passes, p.Copy = 2, []plan.Copy{{Seq: 1, Replica: 1}} },
		"2 has a prompt chunk":               func(_ *Machine, p *plan.Plan) { p.Passes = 2; chunk(p) },
		"1 samples nothing":                  func(_ *Machine, p *plan.Plan) { p.Passes, decode(p).Sample = 2, false },
		"1 has 2 tokens in a row":            func(_ *Machine, p *plan.Plan) { p.Passes, decode(p).Tokens = 2, make([]int32, 2) },
		"1 requests a draft of 1":            func(_ *Machine, p *plan.Plan) { p.Passes, decode(p).Draft = 2, 1 },
		"3 decodes one token a step under": func(_ *Machine, p *plan.Plan) {
			p.Passes = 2
			d := decode(p)
			d.Seq, d.Start, d.Accepted = 3, 100, 0
		},
		"is at position 999, context":       func(m *Machine, p *plan.Plan) { m.seqs[1].Read, p.Passes, decode(p).Start = 997, 2, 999 },
		"indexes sequence 7, which is not":  func(_ *Machine, p *plan.Plan) { p.Index = []plan.Index{{Seq: 7, Pieces: 1}} },
		"indexes sequence 1, and names it":  func(_ *Machine, p *plan.Plan) { p.Index = []plan.Index{{Seq: 1, Pieces: 1}} },
		"indexes sequence 4, whose prompt":  func(_ *Machine, p *plan.Plan) { p.Index = []plan.Index{{Seq: 4, Pieces: 1}} },
		"7 cannot be copied: it is not":     func(_ *Machine, p *plan.Plan) { p.Copy = []plan.Copy{{Seq: 7, Replica: 1}} },
		"2 cannot be copied: its prompt":    func(_ *Machine, p *plan.Plan) { p.Copy = []plan.Copy{{Seq: 2, Replica: 1}} },
		"cannot be copied: it has a rep":    func(m *Machine, p *plan.Plan) { m.seqs[1].Replica, p.Copy = 1, []plan.Copy{{Seq: 1, Replica: 1}} },
		"step 5 copies sequence 1 twice":    func(_ *Machine, p *plan.Plan) { p.Copy = []plan.Copy{{Seq: 1, Replica: 1}, {Seq: 1, Replica: 1}} },
		"a replica on 0 of 2, owner 0":      func(_ *Machine, p *plan.Plan) { p.Copy = []plan.Copy{{Seq: 1}} },
		"copies sequence 4 and does not de": func(_ *Machine, p *plan.Plan) { p.Copy = []plan.Copy{{Seq: 4, Replica: 1}} },
	} {
		m := checked(t)
		p := &plan.Plan{Step: 5, Decode: []plan.Run{{Seq: 1, Start: 130, Accepted: 2, Tokens: make([]int32, 1),
			Sample: true, PromptLogprobs: plan.None, Next: plan.None}}}
		edit(m, p)
		switch _, err := m.check(p); {
		case want == "" && err != nil:
			t.Errorf("a good plan: %v", err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("want %q, got %v", want, err)
		}
	}
	m, p := checked(t), &plan.Plan{Step: 5,
		Decode: []plan.Run{{Seq: 8, Start: 120, Tokens: make([]int32, 1), Sample: true, PromptLogprobs: plan.None, Next: plan.None}}}
	resume(p, 8, 120).Owner = 1
	if _, err := m.check(p); err != nil {
		t.Errorf("a sequence that resumes on another rank: %v", err)
	}
}
