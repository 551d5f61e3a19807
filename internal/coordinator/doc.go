// Package coordinator has the tasks of a coordinator besides scheduling. The director places the model on the
// present nodes, and the stepper runs the batcher's plans on them. An election decides which of several
// coordinators is active.
//
//	director.go   the actor around topology.Authority: its effects become calls of nodes
//	discover.go   finds nodes by gossip, and reports those that have died (confirm.go asks them first)
//	stepper.go    sends a plan to all sockets of a group, and combines their results
//	failure.go    classifies why a socket failed a step
//	straggler.go  asks the nodes of a slow step for their progress; loadwatch.go does so for a load
//	election.go   holds the lease, and records placements under it
//	adapt.go      limits plans to what all nodes of a group understand
//	counters.go   counts what faults cost (RecoveryCounters)
//
// Which placement follows a fault is decided in package topology. Which sequences continue, and how, is
// decided in package batcher (failure.go, resume.go).
package coordinator
