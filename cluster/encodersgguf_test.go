package cluster

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/model/modeltest"
	"github.com/shoal-llm/shoal/internal/text/tokenizer"
)

// encoderGGUF writes an encoder and its vocabulary as llama.cpp's converter does.
func encoderGGUF(t *testing.T, name string, pool uint32) string {
	t.Helper()
	dir := filepath.Join(vectorModels, "encoders", name)
	ck, err := checkpoint.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer ck.Close()
	g := modeltest.ConvertEncoder(ck, pool)
	tok, err := tokenizer.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	keys := map[string]any{"model": "bert", "bos_token_id": 2, "eos_token_id": 3, "unknown_token_id": 1}
	var pieces struct {
		Model struct {
			Type  string
			Vocab json.RawMessage
		}
	}
	if b, err := os.ReadFile(filepath.Join(dir, "tokenizer.json")); err == nil {
		if err := json.Unmarshal(b, &pieces); err != nil {
			t.Fatal(err)
		}
	}
	var scored [][2]any
	if pieces.Model.Type == "Unigram" {
		if err := json.Unmarshal(pieces.Model.Vocab, &scored); err != nil {
			t.Fatal(err)
		}
		keys = map[string]any{"model": "t5", "bos_token_id": 0, "eos_token_id": 2, "unknown_token_id": 3}
	}
	var tokens []string
	var kinds []int32
	var scores []float32
	for id := range tok.VocabSize() {
		s, kind, score := tok.Token(int32(id)), int32(1), float32(0)
		piece, inside := strings.CutPrefix(s, "##")
		switch {
		case id == 3 && scored != nil:
			kind = 2
		case tok.IsSpecial(int32(id)):
			kind = 3
		case scored != nil:
			score = float32(scored[id][1].(float64))
		case strings.ToLower(s) != s: // the model has lower case, which a GGUF file does not state
			s = fmt.Sprintf("[unused%d]", id)
		case inside:
			s = piece
		default:
			s = "\u2581" + s
		}
		tokens, kinds, scores = append(tokens, s), append(kinds, kind), append(scores, score)
	}
	keys["tokens"], keys["token_type"] = tokens, kinds
	if scored != nil {
		keys["scores"] = scores
	}
	for key, v := range keys {
		g.Set("tokenizer.ggml."+key, v)
	}
	file := filepath.Join(t.TempDir(), "model.gguf")
	if err := os.WriteFile(file, g.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// TestEncoderGGUF: texts over HTTP give the vectors and scores of transformers from one GGUF file.
func TestEncoderGGUF(t *testing.T) {
	for name, pool := range map[string]uint32{"bert": 1, "distilbert": 1, "nomic": 1, "xlmr": 2, "xlmr_reranker": 4} {
		t.Run(name, func(t *testing.T) {
			g := readVectorGoldens(t, "encoders/"+name)
			s := serveVectors(t, 2, ServeConfig{Model: encoderGGUF(t, name, pool), Weights: "f32", KV: "f32"})
			if pool == 4 {
				var queries, documents []string
				for _, item := range g.Items {
					queries, documents = append(queries, item.Query), append(documents, item.Document)
				}
				var raw struct{ Data []struct{ Score float32 } }
				s.post("/v1/score", fields{"queries": queries, "documents": documents, "raw_scores": true}, 200, &raw)
				for i, item := range g.Items {
					if d := raw.Data[i].Score - *item.Score; d > 1e-4 || d < -1e-4 {
						t.Errorf("pair %d: score %v, want %v", i, raw.Data[i].Score, *item.Score)
					}
				}
				return
			}
			var inputs []string
			tokens := 0
			for _, item := range g.Items {
				inputs, tokens = append(inputs, item.Text), tokens+len(item.IDs)
			}
			all, used := s.embed(inputs, nil)
			if used != tokens {
				t.Errorf("%d tokens, want %d", used, tokens)
			}
			for i, item := range g.Items {
				alike(t, item.Text, all[i], item.Vector)
			}
		})
	}
}
