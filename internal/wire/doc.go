// Package wire holds the version of everything that the processes of a cluster send to each other:
// protobuf messages, collective frames, cache rows, the order of collectives in a step, gossip
// metadata, logins. One number covers them all, since two builds are either compatible or not.
//
// Each package with a wire format records it in testdata/wire/vN.txt, by package wiretest. A change
// without a new Version fails the package's tests (docs/decisions/wire-versions.md).
//
// Each package with a format of its own records it in testdata/wire/vN.txt, by package
// wiretest. A change without a new Version fails the package's tests
// (docs/decisions/wire-versions.md).
package wire
