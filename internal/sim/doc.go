// Package sim runs a whole cluster in one goroutine under virtual time. A seed determines the
// schedule.
//
// The real code makes all decisions:
//   - the batcher's State, each socket's Machine and the collective state machines
//   - the placement Authority, its Fence, and the Lease over which coordinators compete
//   - the rules that find stragglers: Stall, LoadStall, StragglerDetector
//   - a job's State, Journal, Writing and Progress
//   - the cost functions and slot rules of package kvcache
//
// Everything that acts is modelled: a socket's effects on caches of cells (stores_test.go), its
// steps (step_test.go, moves_test.go), the shells of package cluster and actors/socket
// (coordinator_test.go, straggler_test.go, node_test.go, executor_test.go) and jobs (jobs_test.go,
// attempt_test.go), the prefix cache's files and the rows of answers that are sent while steps run
// (files_test.go, answers_test.go), processes that crash, freeze and return (world_test.go), the
// store of the lease (lease_test.go), the store of the jobs, which loses unsynced messages, tears a
// record, refuses, and loses answers (disk_test.go), a network that delays, reorders, repeats and
// loses (network_test.go), failure detectors (discover_test.go), clients (client_test.go).
//
// The language model is a hash (toy_test.go): the token after a sequence depends on every cached
// slot, every rank's part of every row, the sampling seed and the history. A cache row that is
// missing, duplicated or misplaced, a result of another step, or a replay that is off by one gives
// other tokens than the undisturbed run, which a loop computes without a cluster.
//
// check_test.go holds the guarantees: nothing accepted is lost; streams have no gaps and no
// repetitions and equal the undisturbed run; a message of a stale epoch changes nothing; memory
// stays below the budget; epochs only rise; everything ends exactly once, within a bounded time
// after the last fault. blame_test.go has the truth about hanging and slow nodes. Such a node is fenced
// in time, and no other node is. If all nodes hang, none is fenced. A node that works again takes
// part again. audit_test.go reads the store at the end: every accepted job has ended once there, by
// attempts in order, each written by the coordinator that started it. Its record equals the answer that
// its client got.
//
// A seed that breaks a guarantee prints its transcript:
//
//	go test ./internal/sim -run TestSeed -seed=N -v
package sim
