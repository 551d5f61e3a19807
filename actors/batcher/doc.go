// Package batcher decides what the cluster computes next: continuous batching
// under a byte ledger.
//
// [State] is a pure state machine: Step takes one input and returns effects as a
// value. It reads no clock, starts nothing and draws nothing at random, so every
// story it can tell is a transcript (testdata). [Batcher] is the actor around it,
// too simple to be wrong: messages in, Step, effects out.
//
// The life of a request, in files:
//
//	submit.go    a Submit is refused with a reason, or waits in order
//	schedule.go  memory for the decode rows (preempting the last in order), then the
//	             plan: decode rows, chunks of prompts, new admissions
//	ledger.go    what an admission costs on every socket, and which socket owns it
//	done.go      results of a step: tokens out, end of prefill frees bytes, finish
//	failure.go   a broken epoch: everything running goes back to waiting
//
// Order is first come, first served by arrival + priority x PriorityMillis. Only
// the head of that order is admitted, and only its tail is preempted, so the head
// always makes progress and every request ends.
//
// A request that was preempted, or whose epoch broke, keeps its tokens and is
// rebuilt: under an identity policy by prefill of prompt and tokens, else by prefill
// of the prompt and a replay of the tokens through decode rows, which evicts the
// same slots. Replayed tokens are compared with the recorded ones and not emitted
// again.
package batcher
