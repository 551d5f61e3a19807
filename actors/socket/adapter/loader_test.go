package adapter

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"github.com/shoal-llm/shoal/actors/layer/lowrank"
	"github.com/shoal-llm/shoal/internal/engine/lora"
	"github.com/shoal-llm/shoal/topology"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestRemovedMeanwhile: another process that uses the folder may remove an adapter to make room. Its files are then
// missing, not damaged, so that they are sent again.
func TestRemovedMeanwhile(t *testing.T) {
	store, err := lora.OpenStore(t.TempDir(), 0)
	if err != nil {
		t.Fatal(err)
	}
	id, err := store.Copy(os.DirFS("../testdata/lora/llama_r8"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(store.Path(id), lora.Files()[1])); err != nil {
		t.Fatal(err)
	}
	l := NewLoader(store, nil)
	defer l.Close()
	done := make(chan struct{})
	l.Load(context.Background(), id, topology.Placement{}, 0, func(a *lowrank.Adapter, err error) {
		if a != nil || err != nil {
			t.Errorf("adapter %v, %v", a, err)
		}
		close(done)
	})
	<-done
	if store.Has(id) {
		t.Error("the rest of its files stayed")
	}
}
