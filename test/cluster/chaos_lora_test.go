package cluster_test

import (
	"fmt"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/lora/loratest"
)

// TestChaosLoRA kills two nodes, one after the other, while streams of eight adapters and of the model
// itself decode. Each stream has the tokens and logprobs of the undisturbed run on one node with the other
// mapping.
func TestChaosLoRA(t *testing.T) {
	const base = "../../models/fry"
	ck, err := checkpoint.Open(base)
	if err != nil {
		t.Fatal(err)
	}
	defer ck.Close()
	root := t.TempDir()
	args := []string{"--model", base}
	for i := range 8 {
		rank, dir := []int{8, 16, 4, 32, 16, 64, 1, 16}[i], filepath.Join(root, fmt.Sprint("a", i))
		if err := loratest.Write(dir, loratest.Config(rank, nil), loratest.Random(&ck.Config, rank, uint64(i))); err != nil {
			t.Fatal(err)
		}
		args = append(args, "--lora", fmt.Sprintf("a%d=%s", i, dir))
	}
	reqs := load()
	for i := range reqs {
		if i%9 < 8 {
			reqs[i].body["model"] = fmt.Sprint("a", i%9)
		}
	}
	alone := up(t, 1, append(args, "--mapping", "gather")...)
	want, _ := alone.undisturbed(t, reqs)
	c := up(t, 3, append(args, "--mapping", "reduce")...)
	for i, id := range []string{"node-1", "node-2"} {
		surviveFault(t, c, "with adapters, kill -9 "+id, reqs, want, func() { c.signal(id, syscall.SIGKILL) })
		c.waitNodes(2-i, recoverLimit)
	}
	got, _ := c.undisturbed(t, reqs) // a stream that ended before the last fault did not need its adapter after it
	same(t, "with adapters, after both faults", reqs, want, got)
	c.waitIdle(patience)
	loaded := 0
	for _, n := range c.state().Nodes {
		loaded = max(loaded, n.LoRAAdapters)
	}
	if loaded != 8 {
		t.Errorf("%d adapters are in memory, want 8", loaded)
	}
}
