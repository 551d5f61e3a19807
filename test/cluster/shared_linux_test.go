package cluster_test

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"testing"

	"github.com/shoal-llm/shoal/internal/sys/sharedmem"
)

// The nodes of one command share the memory of weights that each of them reads completely.
func TestNodesShareWeights(t *testing.T) {
	t.Parallel()
	f, err := sharedmem.Create()
	if err != nil {
		t.Skip(err)
	}
	f.Close()
	s := up(t, 3, "--model", goldenModel, "--mapping", "reduce")
	nodes := s.children()
	mapped := regexp.MustCompile(`(?s)shoal-shared[^\n]*\n(?:[A-Z][^\n]*\n)*?Rss: +(\d+) kB\nPss: +(\d+) kB`)
	for _, pid := range nodes {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps", pid))
		if err != nil {
			t.Fatal(err)
		}
		m := mapped.FindSubmatch(text)
		if m == nil {
			t.Fatalf("node %d of %d maps nothing shared", pid, len(nodes))
		}
		rss, _ := strconv.Atoi(string(m[1]))
		pss, _ := strconv.Atoi(string(m[2]))
		if rss < 64 || pss > rss/2 {
			t.Errorf("node %d: %d kB of shared weights, of which it bears %d", pid, rss, pss)
		}
	}
}
