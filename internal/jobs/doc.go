// Package jobs makes completions durable: what was accepted is on disk before
// the answer, runs at least once, commits exactly once, and survives the death of
// the coordinator at any moment.
//
//	HTTP -> Service -> Store -> journals (package journal)
//	          │  ^
//	          v  │ events
//	        api.Engine
//
// A job is a journal: Accept, Start, Tokens..., Done. Its state is the fold of its
// records (state.go, pure), so a process that takes over reads the journal and goes
// on. Tokens are written before anybody sees them; a client's event index is a
// place in the journal, the same for ever.
//
// Below lie package journal (records, the log), package files, and package door (what
// their routes share); above, package batches runs files of requests as jobs.
package jobs
