package cluster

import (
	"log/slog"
	"net"
	"testing"

	"shoal/security"
)

// TestKeeperHoldsItsAddress: what a process offers to the store is not taken by
// somebody else before the store is formed, and is free when it has left.
func TestKeeperHoldsItsAddress(t *testing.T) {
	k, err := openKeeper(t.TempDir(), "a", "127.0.0.1:0", security.RoleNode, security.Key{}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if l, err := net.Listen("tcp", k.addr); err == nil {
		l.Close()
		t.Errorf("%s was free", k.addr)
	}
	k.close()
	l, err := net.Listen("tcp", k.addr)
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
}
