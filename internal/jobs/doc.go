// Package jobs makes completions durable. An accepted request is on disk before it is
// acknowledged. It runs at least once, commits exactly once, and survives a crash of
// the coordinator at any moment.
//
//	HTTP -> Service -> Store -> journals (package journal)
//	          │  ^
//	          v  │ events
//	      engine.Engine
//
// A job is a journal: Accept, Start, Tokens..., Done. Its state is the fold of its
// records (state.go, pure), so a process that takes over reads the journal and
// continues. Tokens are written before any client sees them. A client's event index is
// a position in the journal and never changes.
//
// This package builds on package journal (records and the log), package files, and
// package routes (what the HTTP routes share). Package batches builds on it and runs
// files of requests as jobs.
package jobs
