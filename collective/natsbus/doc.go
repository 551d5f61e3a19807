// Package natsbus carries collectives over NATS: a server embedded in every
// process, connected in a full mesh by routes that spread by gossip, with
// in-process clients; or an external NATS by URL.
//
//	process A                              process B
//	Group ─ Transport ─ pipe ─ Server ───TCP── Transport ─ Group
//
// Each rank listens at the server of every other one, so a message crosses one
// server ([Transport], link.go); how ranks find one another is in call.go, who reads
// the connections in poller_linux.go. Routes
// carry that, everything else, and tensors where it cannot be done.
//
// Subjects of one group in one epoch, source and destination as ranks:
//
//	tp.<cluster>.<group>.<epoch>.b.<src>         to all
//	tp.<cluster>.<group>.<epoch>.p.<dst>.<src>   to one
//	tp.<cluster>.<group>.<epoch>.a.<dst>.<src>   to one: the address of src's server
//
// Each [Transport] has connections of its own, whose users may publish only as
// its rank and subscribe only to what is meant for it. The epoch is part of the
// subject, so a stale sender has no listeners at all.
//
// Losses on NATS are silent. Those that can be seen (slow consumer, lost
// connection: then with the rank at its other end) fail the group at once through
// collective.Notifier; those before interest has spread are covered by the hello
// barrier ([Transport.Ready]); the rest ends at the deadline of an operation.
// settings.go lists the settings that matter and why.
package natsbus
