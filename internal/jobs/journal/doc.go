// Package journal stores jobs, batches and files as records of journals, in a log that
// several processes may write to.
//
// A record is appended only if the journal's last message has the expected number
// (compare-and-swap per journal). It carries its own hash and that of its predecessor
// (record.go). So of two concurrent writers one fails, and damage is detected.
// state.go decides, in pure code, how a record gets to the end of a journal; writer.go
// carries it out. The log is a JetStream stream with file storage and a sync per write
// (jetstream.go), or, in tests, memory (package journaltest).
package journal
