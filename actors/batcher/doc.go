// Package batcher decides the next step of the cluster: continuous batching
// under a byte ledger.
//
// [State] is a pure state machine: Step takes one input and returns effects as a
// value. It reads no clock, starts nothing and uses no randomness, so tests compare it
// with transcripts (testdata). [Batcher] is the actor around it: it turns messages into
// inputs, and performs the effects.
//
// The core is the life of a request, in files. Admission, schedule and ledger come first:
//
//	state.go     processes one input; placements, and the ends of requests
//	submit.go    rejects a request with a reason, or adds it to the queue (validate.go checks the
//	             request by itself)
//	admission.go admits the first waiting request in order, and preempts others for it
//	schedule.go  makes the next step: memory for the decode rows (it preempts the last in
//	             order), decode rows, chunks of prompts, new admissions
//	ledger.go    books the bytes of an admission on every socket
//	done.go      takes the results of a step: emits tokens, frees bytes after prefill
//	failure.go   handles a broken epoch: running requests go back into the queue
//	resume.go    gives requests the caches that outlived an epoch
//
// Features are modules with their own state. The scheduler calls their hooks (admit, plan,
// done, evict):
//
//	prefix*.go        prompts share blocks that they begin with; package prefix has the blocks
//	input.go          chunks of prompt tokens that are computed as decode rows
//	drafts.go         rows of several tokens: known output tokens, and drafts of package drafts
//	replica, spill.go residency: replicas on other sockets, rows in files
//	context.go        forks of fixed contexts
//	sessions.go       caches that wait for the next turn
//	saved.go          caches of idle sessions in files; package saved has the orders
//	adapted.go        LoRA adapters; package adapters has their memory
//	remoteprefill.go  prompts that the prefill group reads; package prefillgroup has their progress
//	clustering.go     policies that cluster a prompt
//	layers.go         prompts that are read layer by layer
//	multistep.go      several passes of the model in one step
//	cut.go            sequences whose cache fits no single socket
//	openend.go        requests with as many output tokens as fit
//	outage.go         the duration of the outages between epochs
//
// The packages below get values and no requests: booking (the bytes of an admission, and its owner),
// prefix, snapshots, textkeys, drafts, adapters, prefillgroup, replicas, saved, threads (the number of compute
// threads), overlap (the number of micro-batches), rate (the throughput), stream (tokens that a client has
// not read) and outbox (sequences that sockets must drop). ARCHITECTURE.md has a line for each.
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

import (
	"github.com/shoal-llm/shoal/actors/batcher/prefillgroup"
	"github.com/shoal-llm/shoal/actors/batcher/prefix"
	"github.com/shoal-llm/shoal/actors/batcher/report"
	"github.com/shoal-llm/shoal/actors/batcher/saved"
	"github.com/shoal-llm/shoal/actors/batcher/stream"
)

// Values of the packages below that callers of this package use.
type (
	PrefillDone   = prefillgroup.Done
	TakeDone      = prefillgroup.TakeDone
	SavedDone     = saved.Done
	DiskDone      = prefix.DiskDone
	Sink          = stream.Sink
	Stream        = stream.Stream
	Event         = stream.Event
	Totals        = report.Totals
	RequestState  = report.Request
	SocketLedger  = report.SocketLedger
	Result        = report.Result
	PromptLogprob = report.PromptLogprob
	Emit          = report.Emit
	Scores        = report.Scores
	Finish        = report.Finish
	Reject        = report.Reject
	Broken        = report.Broken
	Fault         = report.Fault
	Speculated    = report.Speculated
	Disk          = report.Disk
	Outage        = report.Outage
	Snapshot      = report.Snapshot
	Socket        = report.Socket
	Held          = report.Held
)
