// Package journal is how jobs, batches and files are kept: as records of journals in
// a log that several processes may write.
//
// Each record is appended under the number of the last one (compare-and-swap per
// journal) and carries a hash of itself and of the one before it (record.go): two
// writers cannot both win, and damage has a name. How a record gets to the end of a
// journal is decided in state.go, which is pure; writer.go does it. The log is a
// JetStream stream with file storage and sync always (jetstream.go), or memory.
package journal
