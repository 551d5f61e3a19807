// Package rpc carries control messages between the processes of a cluster: spawn, load,
// step, result. It wraps Proto.Actor's remote package with input validation and adds
// calls, death notices and a version handshake. Messages have at most 1 MB; tensors use
// package collective.
//
// # Wire format
//
// The only message is proto.Envelope, whose definition is frozen. Its kind identifies the
// payload, so an old process that receives a new kind replies with an error instead of
// failing to decode an unknown type.
//
// # Guarantees
//
//   - Delivery is at most once, and losses are not reported: a lost connection can take
//     queued messages with it. Call retries only requests marked as idempotent.
//   - A reply reaches a call only if it has the call's request number, is addressed to
//     this incarnation of this process, and comes from the incarnation that was
//     asked. All other replies are dropped and counted.
//   - If a process dies before it handles a queued request, its successor refuses
//     the request (Envelope.to).
//   - No envelope can crash a process: everything is validated before Proto.Actor
//     reads it (guard.go).
//   - Every wait ends: with the context, with Config.CallTimeout if the context has
//     no deadline, or when the peer's death is detected.
//
// # Protection from Proto.Actor's defects
//
// guard.go filters the receiving stream and link.go wraps the sending stream; each lists
// the defects that it handles. control.go adds a second gRPC service on the same port
// (Hello, Watch). It does not depend on the state of Proto.Actor's endpoints, so it
// distinguishes false alarms about a peer from true ones.
//
// # Known limits
//
// Remote.Start sets the global logger of grpc without a lock. Starting a second System
// while the first is running is therefore a data race in grpc. A process runs one System;
// tests with several re-execute themselves. Close stops every goroutine of the System.
// Proto.Actor's activator and supervisor remain in memory as idle values.
package rpc
