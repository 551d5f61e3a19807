package recipe

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/gguf"
	"github.com/shoal-llm/shoal/internal/engine/pooling"
)

// methodsGGUF are the values of pooling_type (llama.cpp's enum llama_pooling_type).
var methodsGGUF = map[int64]pooling.Method{1: pooling.Mean, 2: pooling.CLS, 3: pooling.Last, 4: pooling.Last}

const rankGGUF = 4

// readGGUF reads pooling_type and the tensors that work on vectors.
func readGGUF(r *Recipe, ck *checkpoint.Checkpoint) (bool, error) {
	files := ck.Files()
	if len(files) == 0 || !strings.EqualFold(filepath.Ext(files[0]), ".gguf") {
		return false, nil
	}
	f, err := gguf.Open(files[0])
	if err != nil {
		return false, fmt.Errorf("%w: %w", ErrRecipe, err)
	}
	defer f.Close()
	arch, err := f.Text("general.architecture", "")
	if err != nil {
		return false, fmt.Errorf("%w: %w", ErrRecipe, err)
	}
	kind, err := f.Whole(arch+".pooling_type", 0, 0, rankGGUF)
	if err != nil || kind == 0 {
		return false, err
	}
	r.Source, r.Pool = arch+".pooling_type", methodsGGUF[kind]
	if kind == rankGGUF {
		return true, r.rankGGUF(f, ck)
	}
	for _, name := range []string{"dense_2.weight", "dense_3.weight"} {
		t, err := ck.Tensor(name)
		if err != nil {
			continue // the model has no such layer
		}
		r.dense = append(r.dense, layer{in: t.Cols(), out: t.Rows(), w: allOf(t), activation: "identity"})
	}
	return true, nil
}

// rankGGUF reads a reranker's rows: one score, or the logits of "yes" and "no".
func (r *Recipe) rankGGUF(f *gguf.File, ck *checkpoint.Checkpoint) error {
	t, err := ck.Tensor("cls.output.weight")
	if err != nil {
		return fmt.Errorf("%w: pooling_type rank: %w", ErrRecipe, err)
	}
	if t.Rows() > 2 {
		return bad(ck.Dir, "cls.output.weight has %d rows; scores need 1 or 2", t.Rows())
	}
	r.Scores = true
	for i := range t.Rows() {
		row := make([]float32, t.Cols())
		t.Row(row, i, 0, len(row))
		r.score.rows = append(r.score.rows, row)
	}
	if r.Pair, err = f.Text("tokenizer.chat_template.rerank", ""); err != nil {
		return fmt.Errorf("%w: %w", ErrRecipe, err)
	}
	if r.Pair == "" && strings.HasPrefix(ck.Config.Architecture, "Qwen3") {
		r.Pair = qwen3Pair
	}
	return nil
}
