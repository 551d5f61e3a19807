package store

import (
	"log/slog"
	"net"
	"testing"

	"shoal/security"
)

// TestReplicaHoldsItsAddress: what a process offers to the store is not taken by
// somebody else before the store is formed, and is free when it has left.
func TestReplicaHoldsItsAddress(t *testing.T) {
	r, err := openReplica(t.TempDir(), "a", "127.0.0.1:0", security.RoleNode, security.Key{}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if l, err := net.Listen("tcp", r.addr); err == nil {
		l.Close()
		t.Errorf("%s was free", r.addr)
	}
	r.close()
	l, err := net.Listen("tcp", r.addr)
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
}
