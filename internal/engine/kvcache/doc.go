// Package kvcache holds the keys and values that attention reads, and the recurrent states of layers
// that have one instead (package states).
//
// A [memory.Arena] is the memory of one socket: blocks of [tensor.BlockSlots] slots of one KV head of one
// layer, under one byte ledger. A [Store] is one sequence on one socket: for every layer and KV
// head a list of blocks and the true position of the token in each slot. A [Policy] decides which
// slots a sequence keeps at the end of prefill, which slot the next token takes, and which slots a
// query reads. The cost of a sequence is known before it is admitted: [PrefillBytes],
// [ResidentBytes] and [HandoverBytes] are exact to the byte. Blocks are reference-counted: a
// [Segment] is a run of them that several stores read.
//
// The life of a sequence:
//
//	prefill, on every socket, its KV heads [lo,hi):
//	    s := NewPrefill(arena, geometry, Span{lo, hi})
//	    per step:  s.Reserve(tokens); s.Write(...) ...; s.Commit(n)
//	end of prefill, on the socket that owns the sequence:
//	    o := NewStore(arena, geometry, policy)
//	    o.Open(prompt, Span{lo, hi})       all the bytes that the hand-over needs
//	    own heads:     o.Adopt(s, head) when policy.KeepsPrompt(), else o.Keep(s, layer, head, kept)
//	    other heads:   PromptBlock(...).Store(rows, o)
//	    o.Seal(); s.Release()
//	and on the others:
//	    rows = PromptBlock(...).Append(rows, Selection{s, policy, kept}); s.Release()
//	decode, on the owner:
//	    per step:  o.Reserve(o.Tokens()+1); o.Write(...) ...; o.Commit(1)
//
// Rows leave and enter a store as a [rowblock.Block] only. To add a policy, read policy.go: it has all that
// a policy can declare. One with an index of the prompt implements [PromptIndex].
//
// A step is repeated by writing its tokens again, which undoes its earlier writes. [Store.Rollback]
// returns to the last Commit, even if a ring slot was overwritten meanwhile. A step may have several
// tokens and commit only some: the bits are those of one token a step ([Store.BatchedDecode]).
package kvcache
