package cluster_test

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/sys/sharedmem"
)

// TestNodesShareWeights checks that the nodes of one command share the memory of weights that each
// of them reads completely, with and without a standby.
func TestNodesShareWeights(t *testing.T) {
	f, err := sharedmem.Create()
	if err != nil {
		t.Skip(err)
	}
	f.Close()
	mapped := regexp.MustCompile(`(?s)shoal-shared[^\n]*\n(?:[A-Z][^\n]*\n)*?Rss: +(\d+) kB\nPss: +(\d+) kB`)
	for name, more := range map[string][]string{"alone": nil, "standby": {"--standby", "--data-dir", t.TempDir()}} {
		t.Run(name, func(t *testing.T) {
			parallel(t)
			s, running, nodes := up(t, 3, append(more, "--model", goldenModel, "--mapping", "reduce")...), built.running(), 0
			for _, pid := range s.children() {
				if !strings.Contains(running[pid], " node ") {
					continue
				}
				nodes++
				text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps", pid))
				if err != nil {
					t.Fatal(err)
				}
				m := mapped.FindSubmatch(text)
				if m == nil {
					t.Fatalf("node %d maps nothing shared", pid)
				}
				rss, _ := strconv.Atoi(string(m[1]))
				pss, _ := strconv.Atoi(string(m[2]))
				if rss < 64 || pss > rss/2 {
					t.Errorf("node %d: %d kB of shared weights, of which it bears %d", pid, rss, pss)
				}
			}
			if nodes != 3 {
				t.Errorf("%d nodes found, want 3", nodes)
			}
		})
	}
}
