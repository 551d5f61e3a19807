// Package collective moves numbers between the ranks of one tensor-parallel
// group: all-gather, all-to-all, all-reduce, reduce-scatter and barrier
// over any [Transport].
//
// # Shape
//
//	caller ──start──▶ ┌───────┐ ──sends──▶ worker ──▶ Transport
//	                  │ state │
//	caller ◀──done─── └───────┘ ◀─messages─ Transport
//
// state.go and op.go decide, without clocks, goroutines or sockets. allgather.go, alltoall.go,
// allreduce.go, ... each describe one operation as at most two phases: the bytes to send, the bytes
// to expect from each rank, and whether to combine them. group.go and worker.go only move bytes.
//
// # Guarantees
//
//   - done is called exactly once for every operation, also after a failure and after Close.
//   - done(nil) means that every byte expected from every rank has arrived
//     and passed its checks; reductions have the bits of the fixed tree.
//   - A message of another epoch, incarnation, group size, source or version
//     has no effect; it is counted ([Stats]).
//   - The wait for a lost message ends at the deadline; the error names the ranks that
//     did not deliver. After one failure the group is dead: every pending and later
//     operation ends with that same error, and a new epoch needs a new Group.
//   - The memory that a peer can make this rank hold is bounded ([Config.WindowOps],
//     [Config.WindowBytes]).
//
// Micro-batches are not ordered relative to each other. A transport may reorder, repeat or lose
// messages: each is addressed by (operation, kind, chunk).
package collective
