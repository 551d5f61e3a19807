// Package natsbus carries collectives over NATS: a server embedded in every
// process, connected in a full mesh by routes that spread by gossip, with
// in-process clients; or an external NATS by URL.
//
//	process A                              process B
//	Group ─ Transport ─ pipe ─ Server ───TCP── Transport ─ Group
//
// Each rank subscribes at the server of every other rank, so a message crosses one server
// ([Transport], link.go). announce.go describes how ranks find one another, poller_linux.go how the
// connections are read. Routes carry the addresses, all other traffic, and tensors where a direct
// connection is impossible.
//
// Subjects of one group in one epoch, source and destination as ranks:
//
//	tp.<cluster>.<group>.<epoch>.b.<src>         to all
//	tp.<cluster>.<group>.<epoch>.p.<dst>.<src>   to one
//	tp.<cluster>.<group>.<epoch>.a.<dst>.<src>   to one: the address of src's server
//
// Each [Transport] has connections of its own. Their users may publish only as its rank and
// subscribe only to messages for it. The epoch is part of the subject, so a stale sender has no
// subscribers.
//
// NATS loses messages silently. Losses that can be detected (a slow consumer; a lost connection,
// with the rank at its other end) fail the group at once through collective.Notifier. The hello
// barrier ([Transport.Ready]) prevents losses before subscriptions have spread. All other losses
// end at the deadline of an operation. settings.go lists the settings that matter and why.
package natsbus
