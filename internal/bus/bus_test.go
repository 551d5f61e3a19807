package bus

import (
	"bytes"
	"log/slog"
	"path/filepath"
	"testing"

	"github.com/shoal-llm/shoal/internal/gossip"
	"github.com/shoal-llm/shoal/internal/hostname"
	"github.com/shoal-llm/shoal/internal/security"
)

// TestClosedBusLeavesTheKey: a program that starts a coordinator again after it lost its lease uses one key. The key does
// not call the closed connections when its file is read again.
func TestClosedBusLeavesTheKey(t *testing.T) {
	path := filepath.Join(t.TempDir(), "key")
	if err := security.WriteKeyFile(path, security.NewKey()); err != nil {
		t.Fatal(err)
	}
	key, err := security.ReadKeyFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	b, err := Open(Config{Role: security.RoleCoordinator, Cluster: "c", ID: "a", Place: hostname.Place{Bind: "127.0.0.1:0"}, Key: key,
		Meta: gossip.Meta{Incarnation: 1, Build: "x", State: gossip.Ready}, OnEvent: func(gossip.Event) {},
		Logger: slog.New(slog.NewTextHandler(&out, nil))})
	if err != nil {
		t.Fatal(err)
	}
	reloads := func() int { return bytes.Count(out.Bytes(), []byte("cluster keys reloaded")) }
	if err := key.Reload(); err != nil || reloads() != 1 {
		t.Fatalf("%v; %s", err, out.String())
	}
	b.Close()
	if err := key.Reload(); err != nil || reloads() != 1 {
		t.Errorf("closed: %v; %s", err, out.String())
	}
}
