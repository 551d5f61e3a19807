// Package sim runs a whole cluster in one goroutine under virtual time: one seed,
// one schedule, always the same.
//
// What decides is the real code: the batcher's State, the placement Authority and
// its Fence, the rules that find who holds up the others (Stall, LoadStall, Pace), the
// Lease over which coordinators compete, each socket's Machine, the collective state
// machines, a job's State, Journal, Writing and Progress, the cost functions and slot
// rules of package kvcache. What does is modelled: a socket's effects on caches of cells
// (stores.go), its steps (step.go, moves.go), the shells of package cluster and
// actors/socket (coordinator.go, straggler.go, node.go, executor.go) and jobs (jobs.go,
// attempt.go), the prefix cache's files and the rows of answers that cross beside the steps
// (files.go, answers.go), processes that crash, freeze and come back (world.go), the store of the
// lease (lease.go), that of the jobs, which loses what it has not synced, tears a
// record, refuses, and forgets to answer (disk.go), a network that delays, reorders,
// repeats and loses (network.go), failure detectors (discover.go), clients (client.go).
//
// The language model is a hash (toy.go): the token after a sequence depends on
// every cached slot, every rank's part of every row, the sampling seed and the
// history. A cache row that is missing, doubled or misplaced, a result of another
// step, a replay that is off by one: each gives other tokens than the undisturbed
// run, which is computed besides by a loop without a cluster.
//
// check.go holds what is promised: nothing accepted is lost, streams have no gap
// and no repetition and equal the undisturbed run, a message of a stale epoch
// changes nothing, memory stays below the budget, epochs only rise, everything
// ends within a bounded time after the last fault, and exactly once. blame.go knows
// who truly hangs and who is slow: such a node is left out in time, nobody else is,
// and nobody at all when all stand still alike; who works again takes part again.
// audit.go reads the store at the end: every job that a client was told of has ended
// once there, by the attempts in their order, each written by the coordinator that began
// it, and holds what its client has seen.
//
// A seed that breaks a promise prints its transcript:
//
//	go test ./internal/sim -run TestSeed -seed=N -v
package sim
