package cluster

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

const vectorModels = "../internal/engine/pooling/recipe/testdata"

// vectorGoldens are texts and vectors, or pairs and scores, of sentence-transformers.
type vectorGoldens struct {
	Items, Prompted []struct {
		Text, Prompt, Query, Document string
		IDs                           []int32
		Vector, Cut                   []float32
		Score                         *float32
	}
	Relevance []float32
}

func readVectorGoldens(t *testing.T, name string) (g vectorGoldens) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(vectorModels, name, "goldens.json"))
	if err == nil {
		err = json.Unmarshal(b, &g)
	}
	if err != nil || len(g.Items) == 0 {
		t.Fatalf("%s: %d goldens: %v", name, len(g.Items), err)
	}
	return g
}

// vectorServer serves a model over HTTP.
type vectorServer struct {
	t   *testing.T
	url string
}

func serveVectors(t *testing.T, sockets int, s ServeConfig) *vectorServer {
	t.Helper()
	c := startLocal(t, LocalConfig{Sockets: sockets, Threads: 1, Serve: s})
	a, err := NewAPI(c, c.checkpoint, s, APIConfig{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(a.Handler())
	t.Cleanup(server.Close)
	return &vectorServer{t, server.URL}
}

// post sends a body and decodes the answer, which must have the status.
func (s *vectorServer) post(path string, body any, status int, answer any) string {
	s.t.Helper()
	b, err := json.Marshal(body)
	if err != nil {
		s.t.Fatal(err)
	}
	r, err := http.Post(s.url+path, "application/json", bytes.NewReader(b))
	if err != nil {
		s.t.Fatal(err)
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err == nil && answer != nil {
		err = json.Unmarshal(text, answer)
	}
	if err != nil || r.StatusCode != status {
		s.t.Fatalf("%s %.300s: %d %.300s: %v", path, b, r.StatusCode, text, err)
	}
	return string(text)
}

type fields = map[string]any

type embeddings struct {
	Object string
	Data   []struct {
		Index     int
		Embedding json.RawMessage
	}
	Usage struct {
		Prompt int `json:"prompt_tokens"`
		Total  int `json:"total_tokens"`
	}
}

// embed requests embeddings and returns their vectors.
func (s *vectorServer) embed(input any, more fields) (vectors [][]float32, tokens int) {
	s.t.Helper()
	body := fields{"input": input}
	for k, v := range more {
		body[k] = v
	}
	var e embeddings
	s.post("/v1/embeddings", body, 200, &e)
	for i, d := range e.Data {
		var v []float32
		if d.Index != i || json.Unmarshal(d.Embedding, &v) != nil {
			var text string
			if err := json.Unmarshal(d.Embedding, &text); err != nil {
				s.t.Fatalf("embedding %d of index %d: %.100s", i, d.Index, d.Embedding)
			}
			b, err := base64.StdEncoding.DecodeString(text)
			if err != nil {
				s.t.Fatal(err)
			}
			v = nil
			for ; len(b) >= 4; b = b[4:] {
				v = append(v, math.Float32frombits(binary.LittleEndian.Uint32(b)))
			}
		}
		vectors = append(vectors, v)
	}
	return vectors, e.Usage.Prompt
}

// alike checks the cosine of two vectors, and that both have length 1.
func alike(t *testing.T, what string, got, want []float32) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d dimensions, want %d", what, len(got), len(want))
	}
	dot, length := 0.0, 0.0
	for i := range got {
		dot, length = dot+float64(got[i])*float64(want[i]), length+float64(got[i])*float64(got[i])
	}
	if dot < 1-1e-5 || math.Abs(length-1) > 1e-5 {
		t.Errorf("%s: cosine %v, square of the length %v", what, dot, length)
	}
}

// TestEmbeddings: texts over HTTP give the vectors of sentence-transformers, in every form of input
// and answer, and the same bits on one node and on three.
func TestEmbeddings(t *testing.T) {
	for _, name := range []string{"qwen3_embedding", "embeddinggemma", "mistral_embedding"} {
		t.Run(name, func(t *testing.T) {
			g := readVectorGoldens(t, name)
			var inputs []string
			var ids [][]int32
			tokens := 0
			for _, item := range g.Items {
				inputs, ids, tokens = append(inputs, item.Text), append(ids, item.IDs), tokens+len(item.IDs)
			}
			var one [][]float32
			for _, nodes := range []int{1, 3} {
				s := serveVectors(t, nodes, ServeConfig{Model: filepath.Join(vectorModels, name), Weights: "f32"})
				all, used := s.embed(inputs, nil)
				if used != tokens {
					t.Errorf("%d tokens, want %d", used, tokens)
				}
				if one == nil {
					one = all
				} else if fmt.Sprint(one) != fmt.Sprint(all) {
					t.Error("three nodes give other bits than one")
				}
				for form, again := range map[string]any{"ids": ids, "texts": inputs} {
					packed, _ := s.embed(again, fields{"encoding_format": "base64"})
					if fmt.Sprint(packed) != fmt.Sprint(all) {
						t.Errorf("%s in base64 give other bits", form)
					}
				}
				for i, item := range g.Items {
					alike(t, item.Text, all[i], item.Vector)
					short, _ := s.embed(item.Text, fields{"dimensions": 16})
					alike(t, "16 dimensions of "+item.Text, short[0], item.Cut)
				}
				for _, item := range g.Prompted {
					v, _ := s.embed(item.Text, fields{"prompt_name": item.Prompt})
					alike(t, item.Prompt+item.Text, v[0], item.Vector)
				}
				alone, _ := s.embed(ids[1], nil) // a flat list is one text
				if fmt.Sprint(alone[0]) != fmt.Sprint(all[1]) {
					t.Error("a text alone gives other bits than in a list")
				}
			}
		})
	}
}

// TestRerank: scores are those of sentence-transformers' CrossEncoder, in order.
func TestRerank(t *testing.T) {
	g := readVectorGoldens(t, "qwen3_reranker")
	for _, nodes := range []int{1, 3} {
		s := serveVectors(t, nodes, ServeConfig{Model: filepath.Join(vectorModels, "qwen3_reranker"), Weights: "f32", KV: "f32"})
		var queries, documents []string
		for _, item := range g.Items {
			queries, documents = append(queries, item.Query), append(documents, item.Document)
		}
		type scores struct {
			Data []struct {
				Index int
				Score float32
			}
		}
		var plain, raw scores
		s.post("/v1/score", fields{"text_1": queries, "text_2": documents}, 200, &plain)
		s.post("/score", fields{"queries": queries, "documents": documents, "raw_scores": true}, 200, &raw)
		for i, item := range g.Items {
			if d := plain.Data[i].Score - g.Relevance[i]; d > 1e-4 || d < -1e-4 {
				t.Errorf("pair %d: relevance %v, want %v", i, plain.Data[i].Score, g.Relevance[i])
			}
			if d := raw.Data[i].Score - *item.Score; d > 1e-3 || d < -1e-3 {
				t.Errorf("pair %d: score %v, want %v", i, raw.Data[i].Score, *item.Score)
			}
		}
		var order struct {
			Results []struct {
				Index     int
				Relevance float32 `json:"relevance_score"`
				Document  *struct{ Text string }
			}
		}
		for path, returns := range map[string]bool{"/v1/rerank": true, "/rerank": true, "/v2/rerank": false} {
			order.Results = nil
			s.post(path, fields{"query": queries[0], "documents": []any{documents[1], fields{"text": documents[0]}, documents[2]}, "top_n": 2},
				200, &order)
			if len(order.Results) != 2 || order.Results[0].Relevance < order.Results[1].Relevance || (order.Results[0].Document != nil) != returns {
				t.Errorf("%s: %+v", path, order.Results)
			}
			for _, r := range order.Results {
				if r.Index < 2 && r.Relevance != plain.Data[1-r.Index].Score {
					t.Errorf("%s: document %d has relevance %v, its pair has score %v", path, r.Index, r.Relevance, plain.Data[1-r.Index].Score)
				}
			}
		}
		s.post("/v1/rerank", fields{"query": "a", "documents": []string{"b"}, "instruction": "Another task"}, 200, &order)
		changed := order.Results[0].Relevance
		s.post("/v1/rerank", fields{"query": "a", "documents": []string{"b"}}, 200, &order)
		if order.Results[0].Relevance == changed {
			t.Error("the instruction has no effect")
		}
	}
}

// TestScoresOfEmbeddings: an embedding model ranks by cosine, with its prompts for queries and
// documents.
func TestScoresOfEmbeddings(t *testing.T) {
	s := serveVectors(t, 1, ServeConfig{Model: filepath.Join(vectorModels, "embeddinggemma"), Weights: "f32"})
	query, _ := s.embed("gravity", fields{"prompt_name": "query"})
	document, _ := s.embed("a force", fields{"prompt_name": "document"})
	want := 0.0
	for i, v := range query[0] {
		want += float64(v) * float64(document[0][i])
	}
	var got struct{ Data []struct{ Score float64 } }
	s.post("/v1/score", fields{"text_1": "gravity", "text_2": []string{"pandas", "a force"}}, 200, &got)
	if len(got.Data) != 2 || math.Abs(got.Data[1].Score-want) > 1e-6 {
		t.Errorf("scores %v, want %v second", got.Data, want)
	}
}

// TestOllamaEmbeddings checks both of Ollama's routes, and the capabilities in /api/show and
// /v1/models.
func TestOllamaEmbeddings(t *testing.T) {
	g := readVectorGoldens(t, "qwen3_embedding")
	s := serveVectors(t, 1, ServeConfig{Model: filepath.Join(vectorModels, "qwen3_embedding"), Weights: "f32", MaxContext: 200})
	var many struct {
		Embeddings [][]float32
		Tokens     int `json:"prompt_eval_count"`
	}
	s.post("/api/embed", fields{"model": "qwen3_embedding:latest", "input": []string{g.Items[0].Text, g.Items[1].Text},
		"options": fields{"num_ctx": 4096}}, 200, &many)
	for i := range 2 {
		alike(t, "/api/embed", many.Embeddings[i], g.Items[i].Vector)
	}
	if many.Tokens != len(g.Items[0].IDs)+len(g.Items[1].IDs) {
		t.Errorf("%d tokens", many.Tokens)
	}
	s.post("/api/embed", fields{"model": "qwen3_embedding", "input": g.Items[1].Text, "dimensions": 16}, 200, &many)
	alike(t, "16 dimensions", many.Embeddings[0], g.Items[1].Cut)
	var one struct{ Embedding []float32 }
	s.post("/api/embeddings", fields{"model": "qwen3_embedding", "prompt": g.Items[1].Text}, 200, &one)
	alike(t, "/api/embeddings", one.Embedding, g.Items[1].Vector)

	// A text of 334 tokens: truncated unless that is forbidden, with the end token kept.
	long := g.Items[4]
	cut := append(slices.Clone(long.IDs[:199]), long.IDs[len(long.IDs)-1])
	want, _ := s.embed(cut, nil)
	s.post("/api/embed", fields{"model": "qwen3_embedding", "input": long.Text}, 200, &many)
	if fmt.Sprint(many.Embeddings[0]) != fmt.Sprint(want[0]) || many.Tokens != 200 {
		t.Errorf("a long text was cut to %d tokens, or to other ones", many.Tokens)
	}
	if text := s.post("/api/embed", fields{"model": "qwen3_embedding", "input": long.Text, "truncate": false},
		400, nil); !strings.Contains(text, "334 tokens") {
		t.Error(text)
	}
	var shown, listed struct {
		Capabilities []string
		Data         []struct{ Capabilities []string }
	}
	s.post("/api/show", fields{"model": "qwen3_embedding"}, 200, &shown)
	r, err := http.Get(s.url + "/v1/models")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	if err := json.NewDecoder(r.Body).Decode(&listed); err != nil || len(listed.Data) != 1 {
		t.Fatal(listed, err)
	}
	if want := []string{"embedding", "rerank"}; !slices.Equal(shown.Capabilities, want) || !slices.Equal(listed.Data[0].Capabilities, want) {
		t.Errorf("capabilities %v and %v", shown.Capabilities, listed.Data[0].Capabilities)
	}
}

// TestVectorErrors: a request that the model cannot serve gets an error with a remedy.
func TestVectorErrors(t *testing.T) {
	embedder := serveVectors(t, 1, ServeConfig{Model: filepath.Join(vectorModels, "qwen3_embedding"), Weights: "f32", MaxContext: 100})
	reranker := serveVectors(t, 1, ServeConfig{Model: filepath.Join(vectorModels, "qwen3_reranker"), Weights: "f32"})
	chat := serveVectors(t, 1, ServeConfig{Model: "../models/fry"})
	for _, c := range []struct {
		s    *vectorServer
		path string
		body fields
		want string
	}{
		{embedder, "/v1/chat/completions", fields{"messages": []fields{{"role": "user", "content": "hi"}}}, "/v1/embeddings"},
		{embedder, "/v1/completions", fields{"prompt": "hi"}, "does not generate"},
		{embedder, "/v1/responses", fields{"input": "hi"}, "does not generate"},
		{embedder, "/v1/messages", fields{"model": "qwen3_embedding", "max_tokens": 4, "messages": []fields{{"role": "user", "content": "hi"}}},
			"does not generate"},
		{embedder, "/api/generate", fields{"model": "qwen3_embedding", "prompt": "hi"}, "does not generate"},
		{reranker, "/v1/embeddings", fields{"input": "hi"}, "/v1/rerank"},
		{reranker, "/v1/completions", fields{"prompt": "hi"}, "is a reranker"},
		{chat, "/v1/embeddings", fields{"input": "hi"}, "pooling last"},
		{chat, "/v1/rerank", fields{"query": "a", "documents": []string{"b"}}, "pooling last"},
		{chat, "/api/embed", fields{"model": "fry", "input": "hi"}, "pooling last"},
		{embedder, "/v1/embeddings", fields{}, "'input' is required"},
		{embedder, "/v1/embeddings", fields{"input": ""}, "empty string"},
		{embedder, "/v1/embeddings", fields{"input": []string{}}, "empty list"},
		{embedder, "/v1/embeddings", fields{"input": []any{"a", 5}}, "'input[1]'"},
		{embedder, "/v1/embeddings", fields{"input": []int{100000}}, "outside the vocabulary"},
		{embedder, "/v1/embeddings", fields{"input": "a", "dimensions": 49}, "between 1 and 48"},
		{embedder, "/v1/embeddings", fields{"input": "a", "encoding_format": "hex"}, "encoding_format"},
		{embedder, "/v1/embeddings", fields{"input": "a", "prompt_name": "nosuch"}, "document, query"},
		{embedder, "/v1/embeddings", fields{"input": strings.Repeat("word ", 100)}, "truncate_prompt_tokens"},
		{embedder, "/v1/embeddings", fields{"input": slices.Repeat([]string{"a"}, 2049)}, "more than 2048"},
		{embedder, "/v1/rerank", fields{"query": "a"}, "'documents' is required"},
		{embedder, "/v1/rerank", fields{"query": "a", "documents": []any{fields{"title": "b"}}}, "'documents[0]'"},
		{embedder, "/v1/rerank", fields{"query": "a", "documents": []string{"b"}, "instruction": "c"}, "is for rerankers"},
		{embedder, "/v1/score", fields{"text_1": []string{"a", "b"}, "text_2": []string{"c"}}, "cannot be paired"},
	} {
		if text := c.s.post(c.path, c.body, 400, nil); !strings.Contains(text, c.want) {
			t.Errorf("%s %.100v: %s, want %q", c.path, c.body, text, c.want)
		}
	}
}

// TestVectorsNextToChats: a chat model that also makes vectors gives both the same bits together as
// alone.
func TestVectorsNextToChats(t *testing.T) {
	for _, nodes := range []int{1, 3} {
		s := serveVectors(t, nodes, ServeConfig{Model: "../models/fry", Pooling: "mean"})
		var inputs []string
		for i := range 40 {
			inputs = append(inputs, strings.Repeat(fmt.Sprintf("text number %d ", i), 1+i%23))
		}
		alone, _ := s.embed(inputs[:1], nil)
		complete := func() string {
			var out struct{ Choices []struct{ Text string } }
			s.post("/v1/completions", fields{"prompt": "once upon a time", "max_tokens": 40, "temperature": 0, "ignore_eos": true}, 200, &out)
			return out.Choices[0].Text
		}
		want := complete()
		var wg sync.WaitGroup
		results := make([]string, 4)
		for i := range results {
			wg.Go(func() { results[i] = complete() })
		}
		all, _ := s.embed(inputs, nil)
		wg.Wait()
		for _, got := range results {
			if got != want {
				t.Errorf("%d nodes: next to vectors a completion is %q, alone %q", nodes, got, want)
			}
		}
		if fmt.Sprint(all[0]) != fmt.Sprint(alone[0]) {
			t.Errorf("%d nodes: a vector next to others differs from alone", nodes)
		}
	}
}

// TestPairTemplates: a reranker whose chat template has no queries and documents gets the prompt of its
// family, or refuses. The prompt gives the scores of the template that has them.
func TestPairTemplates(t *testing.T) {
	g := readVectorGoldens(t, "qwen3_reranker")
	chat := filepath.Join(t.TempDir(), "chat.jinja")
	if err := os.WriteFile(chat,
		[]byte("{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}"), 0o600); err != nil {
		t.Fatal(err)
	}
	serve := ServeConfig{Model: filepath.Join(vectorModels, "qwen3_reranker"), Weights: "f32", KV: "f32"}
	c := startLocal(t, LocalConfig{Threads: 1, Serve: serve})
	a, err := NewAPI(c, c.checkpoint, serve, APIConfig{Template: chat, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(a.Handler())
	defer server.Close()
	s := &vectorServer{t, server.URL}
	for i, item := range g.Items {
		var got struct{ Data []struct{ Score float32 } }
		s.post("/v1/score", fields{"text_1": item.Query, "text_2": item.Document}, 200, &got)
		if d := got.Data[0].Score - g.Relevance[i]; d > 1e-4 || d < -1e-4 {
			t.Errorf("pair %d: %v, want %v", i, got.Data[0].Score, g.Relevance[i])
		}
	}
}
