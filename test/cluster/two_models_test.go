package cluster_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/shoal-llm/shoal/internal/testutil"
)

const (
	chatModel   = "../../models/fry"
	vectorModel = "../../internal/engine/pooling/recipe/testdata/encoders/bert"
)

// TestTwoModelsOutliveNodes kills a node of three while streams of a chat model decode and an encoder reads
// long lists of texts. Each answer has the bits of the model alone on one node.
func TestTwoModelsOutliveNodes(t *testing.T) {
	reqs := load()
	alone := up(t, 1, "--model", chatModel+",model-name=chat")
	want, _ := alone.undisturbed(t, reqs)
	texts := make([]string, 400)
	for i := range texts {
		texts[i] = strings.Repeat(fmt.Sprintf("word %d ", i), 1+i%20)
	}
	vectors := textVectors(t, up(t, 1, "--model", vectorModel+",model-name=vectors"), texts)
	for i := range reqs {
		reqs[i].body["model"] = "chat"
	}
	c := up(t, 3, "--model", vectorModel+",model-name=vectors,kv-memory=32MiB", "--model",
		chatModel+",model-name=chat", "--kv-memory", "512MiB")
	done, rounds := make(chan struct{}), 0
	var wg sync.WaitGroup
	wg.Go(func() {
		for ; ; rounds++ {
			select {
			case <-done:
				return
			default:
			}
			if got := textVectors(t, c, texts); !slices.Equal(got, vectors) {
				t.Errorf("round %d: %d vectors, not those of the model alone", rounds, len(got))
				return
			}
		}
	})
	surviveFault(t, c, "with two models, kill -9 node-1", reqs, want, func() { c.signal("node-1", syscall.SIGKILL) })
	close(done)
	wg.Wait()
	c.waitNodes(2, recoverLimit)
	c.waitIdle(patience)
	s := c.state()
	if len(s.Models) != 2 || s.Models[0].KVBudgetBytes != 2*32<<20 || s.Models[1].KVBudgetBytes != 2*480<<20 ||
		s.Recoveries < 1 || rounds == 0 {
		t.Errorf("%d recoveries, %d rounds, models %+v", s.Recoveries, rounds, s.Models)
	}
}

// textVectors returns the vectors of texts, as base64.
func textVectors(t *testing.T, c *system, texts []string) (out []string) {
	var e struct{ Data []struct{ Embedding string } }
	a, err := c.try(t.Context(), "POST", "/v1/embeddings", map[string]any{"input": texts, "encoding_format": "base64"})
	if err == nil {
		err = json.Unmarshal(a.body, &e)
	}
	if err != nil || a.status != 200 {
		t.Errorf("%d %.200s: %v", a.status, a.body, err)
	}
	for _, d := range e.Data {
		out = append(out, d.Embedding)
	}
	return out
}

// TestJobsOfTwoModels kills the coordinator while jobs of two models run, and starts it again with the models
// in the other order. Every job completes on its own model, also a job without a model's name.
func TestJobsOfTwoModels(t *testing.T) {
	data, chat, vectors := t.TempDir(), chatModel+",model-name=chat", vectorModel+",model-name=vectors"
	c := up(t, 2, "--model", chat, "--model", vectors, "--data-dir", data)
	story := map[string]any{"prompt": "Once upon a time", "max_tokens": 600, "temperature": 0, "ignore_eos": true}
	var want struct{ Choices []struct{ Text string } }
	a, err := c.try(t.Context(), "POST", "/v1/completions", story)
	if err != nil || a.status != 200 || json.Unmarshal(a.body, &want) != nil {
		t.Fatalf("%d %s: %v", a.status, a.body, err)
	}
	vector := textVectors(t, c, []string{"a text"})
	ids := map[string]string{}
	for name, job := range map[string]map[string]any{
		"chat":    {"endpoint": "/v1/completions", "body": story},
		"vectors": {"endpoint": "/v1/embeddings", "body": map[string]any{"model": "vectors", "input": "a text", "encoding_format": "base64"}},
		"unnamed": {"endpoint": "/v1/embeddings", "body": map[string]any{"input": "a text", "encoding_format": "base64"}},
	} {
		var accepted struct{ ID string }
		a, err := c.try(t.Context(), "POST", "/v1/jobs", job)
		if err != nil || a.status != 202 || json.Unmarshal(a.body, &accepted) != nil {
			t.Fatalf("%s: %d %s: %v", name, a.status, a.body, err)
		}
		ids[name] = accepted.ID
	}
	c.head.kill(t)
	c = up(t, 2, "--model", vectors, "--model", chat, "--data-dir", data)
	results := map[string]string{}
	for name, id := range ids {
		testutil.Eventually(t, patience, "the job of "+name+" completes", func() (bool, string) {
			a, err := c.try(t.Context(), "GET", "/v1/jobs/"+id, nil)
			if err != nil {
				return false, err.Error()
			}
			results[name] = string(a.body)
			return strings.Contains(results[name], `"state":"completed"`), results[name]
		})
	}
	for name, part := range map[string]string{"chat": want.Choices[0].Text, "vectors": vector[0], "unnamed": vector[0]} {
		quoted, err := json.Marshal(part)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(results[name], string(quoted)) {
			t.Errorf("the job of %s has the result %.300s, want %s", name, results[name], quoted)
		}
	}
}
