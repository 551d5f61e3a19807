// Package rpc carries control between the processes of a cluster: spawn, load,
// step, result. It is Proto.Actor's remote package behind walls, plus calls,
// notices of death and a version handshake. Nothing bulky belongs here (1 MB a
// message is the limit); tensors go over package collective.
//
// # What crosses the wire
//
// One frozen message, proto.Envelope. Its kind names what the payload is, so an
// old process that meets a new kind answers with an error of ours instead of
// failing to decode a type it never heard of.
//
// # What is promised
//
//   - Delivery is at most once and loss is silent: a connection can take queued
//     messages with it. Call retries only when told that the request is
//     idempotent.
//   - A reply reaches a call only if it has its request number, is addressed to
//     this incarnation of this process, and comes from the very incarnation
//     that was asked. Everything else is dropped and counted.
//   - A request that was queued for a process that died meanwhile is refused by
//     its successor (Envelope.to).
//   - No envelope, however wrong, ends a process: everything is checked before
//     Proto.Actor sees it (guard.go).
//   - Every wait ends: by the context, by Config.CallTimeout where the context
//     has no deadline, or when the peer is seen to die.
//
// # Walls around Proto.Actor
//
// guard.go stands in front of the receiving stream and link.go in front of the
// sending stream; each says which defects it is there for. control.go adds a
// second gRPC service on the same port (Hello, Watch) that does not depend on
// the state of Proto.Actor's endpoints: it is how a false alarm about a peer is
// told from a true one.
//
// # What stays behind
//
// Remote.Start sets the global logger of grpc without a lock, so that starting
// a second System in a process while the first is at work is a data race in
// grpc. A process runs one System; tests with several re-run themselves.
// Close stops every goroutine of the System, but Proto.Actor's activator and
// supervisor stay as idle values in the garbage collector's hands.
package rpc
