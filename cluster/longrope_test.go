package cluster

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
)

// TestServedContextReachesSockets: --max-context chooses the factors of a longrope model on every
// socket, and the system fingerprint names the choice.
func TestServedContextReachesSockets(t *testing.T) {
	const dir = "../internal/engine/model/testdata/phi3_longrope"
	ck, err := checkpoint.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer ck.Close()
	for _, test := range []struct {
		context      int
		file, suffix string
	}{{0, "goldens.json", "-long"}, {200, "goldens.json", "-long"}, {64, "goldens.short.json", "-short"}} {
		var g struct {
			Items []golden `json:"items"`
		}
		b, err := os.ReadFile(dir + "/" + test.file)
		if err == nil {
			err = json.Unmarshal(b, &g)
		}
		if err != nil {
			t.Fatal(err)
		}
		s := ServeConfig{Model: dir, MaxContext: test.context, Weights: "f32", KV: "f32"}
		if _, print := Identify(ck, &s); !strings.HasSuffix(print, test.suffix) {
			t.Errorf("context %d: fingerprint %s, want %s at its end", test.context, print, test.suffix)
		}
		for _, sockets := range []int{1, 3} {
			e := startLocal(t, LocalConfig{Sockets: sockets, Threads: 1, KVBudget: 64 << 20, Serve: s})
			for i, it := range g.Items {
				if got := generate(t, e, "r", it.Prompt, len(it.Greedy)); !slices.Equal(got, it.Greedy) {
					t.Errorf("context %d, %d sockets, prompt %d: %v, want %v", test.context, sockets, i, got, it.Greedy)
				}
			}
		}
	}
}
