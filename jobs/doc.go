// Package jobs makes completions durable: what was accepted is on disk before
// the answer, runs at least once, commits exactly once, and survives the death of
// the coordinator at any moment.
//
//	HTTP -> Service -> Store -> journal -> Log (JetStream, file storage, sync always)
//	          │  ^
//	          v  │ events
//	        api.Engine
//
// A job is a journal: Accept, Start, Tokens..., Done. Its state is the fold of its
// records (state.go, pure), and how a record gets to the end of a journal is decided
// beside it (state_journal.go; journal.go does it), so a process that takes over
// reads the journal and goes on. Each record is appended under the number of the last one
// (compare-and-swap per journal) and carries a hash of itself and of the one
// before it (record.go): two writers cannot both win, and damage has a name.
//
// Tokens are written before anybody sees them; a client's event index is a
// place in the journal, the same for ever.
//
// A batch (batch*.go) is a journal of its own over jobs whose names follow from
// the batch and the line, so that creating them twice makes them once.
package jobs
