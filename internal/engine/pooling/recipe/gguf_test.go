package recipe

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/gguf"
	"github.com/shoal-llm/shoal/internal/engine/model/modeltest"
)

// TestBrokenEncoders: GGUF files of encoders that are incomplete or hostile are refused with the
// reason.
func TestBrokenEncoders(t *testing.T) {
	without := func(name string) func(*modeltest.GGUF) {
		return func(g *modeltest.GGUF) {
			i := slices.IndexFunc(g.Table, func(e modeltest.Entry) bool { return e.Name == name })
			g.Table[i].Name = "dense_3.other" // a name that is not read
		}
	}
	with := func(key string, v any) func(*modeltest.GGUF) {
		return func(g *modeltest.GGUF) { g.Unset(key); g.Set(key, v) }
	}
	for _, c := range []struct {
		model, want string
		damage      func(*modeltest.GGUF)
	}{
		{"bert", "", func(*modeltest.GGUF) {}},
		{"bert", "model.layers.1.input_layernorm.weight", without("blk.0.layer_output_norm.weight")},
		{"bert", "model.norm.bias", without("blk.2.layer_output_norm.bias")},
		{"bert", "embed_positions", without("position_embd.weight")},
		{"bert", "embed_positions", with("bert.context_length", 7)},
		{"bert", "attention.head_count", with("bert.attention.head_count", 0)},
		{"bert", "layer_norm_rms_epsilon", func(g *modeltest.GGUF) { g.Unset("bert.attention.layer_norm_epsilon") }},
		{"bert", "layer_norm_epsilon", with("bert.attention.layer_norm_epsilon", float32(-1))},
		{"bert", "max_alibi_bias", with("bert.attention.max_alibi_bias", float32(8))},
		{"bert", "pooling_type", with("bert.pooling_type", 9)},
		{"bert", "layers.0.self_attn.q_norm", func(g *modeltest.GGUF) {
			g.Add("blk.0.attn_q_norm.weight", gguf.F32, []int{16}, make([]byte, 64))
		}},
		{"nomic", "qkv_proj", func(g *modeltest.GGUF) {
			without("blk.1.attn_qkv.weight")(g)
			g.Add("blk.1.attn_qkv.weight", gguf.F32, []int{2, 4}, make([]byte, 32))
		}},
		{"nomic", "expert_count", with("nomic-bert.expert_count", 8)},
		{"modernbert", "sliding_window", with("modern-bert.attention.sliding_window", 0)},
		{"modernbert", "sliding_window_pattern", with("modern-bert.attention.sliding_window_pattern", 0)},
		{"bert_reranker", "BERT's pooler", func(*modeltest.GGUF) {}},
		{"xlmr_reranker", "cls.output.weight", without("cls.output.weight")},
		{"modernbert_reranker", "cls.norm.weight", without("cls.norm.weight")},
	} {
		hub, err := checkpoint.Open(filepath.Join("testdata/encoders", c.model))
		if err != nil {
			t.Fatal(err)
		}
		pool := uint32(1)
		if strings.Contains(c.model, "reranker") {
			pool = rankGGUF
		}
		g := modeltest.ConvertEncoder(hub, pool)
		c.damage(g)
		file := filepath.Join(t.TempDir(), "model.gguf")
		if err := os.WriteFile(file, g.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		ck, err := checkpoint.Open(file)
		if err == nil {
			_, err = Read(ck, Options{})
			ck.Close()
		}
		hub.Close()
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.model, err, c.want)
		}
	}
}
