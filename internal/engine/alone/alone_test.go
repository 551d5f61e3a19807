package alone

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/kvpolicy"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/memory"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

var raceEnabled bool // see race_test.go

// TestResidentMemoryFollowsCompression: prompts that are compressed one after another take as many
// bytes of the process as the ledger counts, never more than the budget and the overhead below. A
// prompt that does not fit is refused. After the release all memory returns to the system.
func TestResidentMemoryFollowsCompression(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("reads /proc")
	}
	if raceEnabled {
		t.Skip("the race detector needs memory of its own for every byte")
	}
	const budget, overhead, prompt = 96 << 20, 24 << 20, 4096 // a full prompt of this shape takes 32 MiB
	ck, err := checkpoint.Random("fry")
	if err != nil {
		t.Fatal(err)
	}
	defer ck.Close()
	pool := tensor.NewPool(1)
	defer pool.Close()
	a, err := New(t.Context(), Config{Checkpoint: ck, Pool: pool, Weights: tensor.BF16, KV: tensor.BF16, KVBudget: budget, StepTokens: 8})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	before, high, held := resident(t), int64(0), 0
	for {
		_, err := a.Fill(t.Context(), []uint64{uint64(held + 1)}, prompt, "snapstream:sink=4,recent=444,topk=512,obs=8")
		if errors.Is(err, memory.ErrBudget) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		held++
		high = max(high, resident(t))
	}
	g := kvcache.Geometry{Layers: 8, KVHeads: 8, Group: 2, Layout: tensor.KVLayout{Type: tensor.BF16, KDim: 32, VDim: 32}}
	p, err := kvpolicy.Parse("snapstream:sink=4,recent=444,topk=512,obs=8")
	if err != nil {
		t.Fatal(err)
	}
	one := kvcache.ResidentBytes(g, prompt, prompt, p)
	t.Logf("%d sequences of %d bytes, resident +%d MiB", held, one, (high-before)>>20)
	if whole := int(budget / kvcache.PrefillBytes(g, 8, prompt, p)); held < 2*whole {
		t.Errorf("%d compressed prompts were held where %d whole ones fit", held, whole)
	}
	if high-before > budget+overhead || high-before < int64(held)*one/2 {
		t.Errorf("resident memory grew by %d bytes, the budget is %d, %d sequences hold %d each", high-before, budget, held, one)
	}
	var all []uint64
	for i := range held {
		all = append(all, uint64(i+1))
	}
	if err := a.Release(t.Context(), all); err != nil {
		t.Fatal(err)
	}
	if low := resident(t); low-before > overhead {
		t.Errorf("%d bytes more than before are resident after the release", low-before)
	}
}

// resident is the process's resident memory after garbage collection.
func resident(t *testing.T) int64 {
	t.Helper()
	debug.FreeOSMemory()
	f, err := os.Open("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		var kib int64
		if strings.HasPrefix(s.Text(), "VmRSS:") {
			if _, err := fmt.Sscanf(s.Text(), "VmRSS: %d kB", &kib); err == nil {
				return kib << 10
			}
		}
	}
	t.Fatal("no VmRSS in /proc/self/status")
	return 0
}
