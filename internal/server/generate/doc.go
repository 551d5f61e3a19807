// Package generate runs requests. Every protocol decodes its bodies to a [Request] of this
// package and writes answers by an [Encoder].
//
// The path of one request:
//
//	params.go        parameters that all protocols share, by their table
//	conversation.go  messages to template segments to tokens
//	run.go           one engine request per choice, merged into one queue
//	choice.go        tokens to text: UTF-8, stop strings, logprobs (pure)
//	answer.go        a run as a stream or as one body
//	task.go          a request that runs apart from its connection (a job)
//
// A slow client never holds up the engine: tokens wait in a queue that max_tokens bounds. When a
// client leaves, its context is cancelled and the engine frees the sequence. A stream ends with a
// finish reason or an error.
package generate
