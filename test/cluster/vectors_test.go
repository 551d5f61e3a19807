package cluster_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/internal/testlevel"
)

// TestVectorsOutliveNodes: a list of texts gives the same bits while a node is killed, for a causal
// model that reads in chunks and for one that reads whole texts.
func TestVectorsOutliveNodes(t *testing.T) {
	testlevel.NeedLong(t)
	for _, name := range []string{"qwen3_embedding", "embeddinggemma"} {
		t.Run(name, func(t *testing.T) {
			c := up(t, 3, "--model", "../../internal/engine/pooling/recipe/testdata/"+name, "--kv-memory", "64MiB")
			texts := make([]string, 1000)
			for i := range texts {
				texts[i] = strings.Repeat(fmt.Sprintf("word %d ", i), 1+i%40)
			}
			embed := func() []string {
				var e struct{ Data []struct{ Embedding string } }
				a, err := c.try(t.Context(), "POST", "/v1/embeddings", map[string]any{"input": texts, "encoding_format": "base64", "cache": false})
				if err == nil {
					err = json.Unmarshal(a.body, &e)
				}
				if err != nil || a.status != 200 {
					t.Errorf("%d %.200s: %v", a.status, a.body, err)
				}
				var out []string
				for _, d := range e.Data {
					out = append(out, d.Embedding)
				}
				return out
			}
			began := time.Now()
			want := embed()
			undisturbed := time.Since(began)
			done := make(chan []string, 1)
			go func() { done <- embed() }()
			time.Sleep(undisturbed / 4)
			c.signal("node-1", syscall.SIGKILL)
			if got := <-done; !slices.Equal(got, want) || len(want) != len(texts) {
				t.Errorf("%d vectors after a kill; they are not those of %d undisturbed ones", len(got), len(want))
			}
			c.waitNodes(2, recoverLimit)
			if s := c.state(); s.Recoveries < 1 {
				t.Error("no recovery: the kill came too late")
			}
		})
	}
}
