package socket

import (
	"fmt"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/topology"
)

// A socket that has ended leaves no memory of the card in use, besides that of the caches.
func TestCardMemory(t *testing.T) {
	c := testCard(t)
	for _, sockets := range []int{1, 2} {
		before := c.Used()
		t.Run(fmt.Sprint(sockets, " sockets"), func(t *testing.T) {
			here := rigConfig{dir: goldenDir, sockets: sockets, mapping: topology.Reduce, weights: "q8_0", kv: tensor.BF16, micro: sockets}
			here.device = onCard(t, c, 1<<25, goldenDir, tensor.BF16)
			newRig(t, here).generate(31, load("full")...)
		})
		if left := c.Used() - before; left != 0 {
			t.Errorf("%d sockets: %d bytes of the card are in use after their end", sockets, left)
		}
	}
}
