package recipe

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/gguf"
	"github.com/shoal-llm/shoal/internal/engine/pooling"
)

// methodsGGUF lists the values of pooling_type (llama.cpp's enum llama_pooling_type).
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
	kind, err := f.Int(arch+".pooling_type", 0, 0, rankGGUF)
	if err != nil || kind == 0 {
		return false, err
	}
	r.Source, r.Pool = arch+".pooling_type", methodsGGUF[kind]
	if kind == rankGGUF && ck.Config.NonCausal {
		return true, r.rankEncoder(ck)
	}
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

// rankEncoder reads the head of an encoder's reranker (see readEncoder). ModernBERT's reads the mean, as in
// llama.cpp.
func (r *Recipe) rankEncoder(ck *checkpoint.Checkpoint) error {
	head := layer{activation: "tanh"}
	head.take(ck, "cls")
	r.Pool = pooling.CLS
	if strings.HasPrefix(ck.Config.Architecture, "Modern") {
		r.Pool, head.activation, head.norm, head.eps = pooling.Mean, "gelu", vector(ck, "cls.norm.weight"), ck.Config.NormEps
	}
	t, err := ck.Tensor("cls.output.weight")
	switch {
	case err != nil:
		return fmt.Errorf("%w: pooling_type rank: %w", ErrRecipe, err)
	case head.in == 0:
		return bad(ck.Dir, "cls.weight, the dense layer before cls.output.weight, is missing: llama.cpp's converter leaves out BERT's pooler; "+
			"use the folder that the file was made from")
	case t.Rows() != 1:
		return bad(ck.Dir, "cls.output.weight has %d rows; scores need exactly 1", t.Rows())
	case head.norm == nil && head.activation == "gelu":
		return bad(ck.Dir, "cls.norm.weight is missing")
	}
	r.scoreTexts(ck, head, t, vector(ck, "cls.output.bias"))
	return nil
}

// scoreTexts makes scores of two texts, by a dense layer and a row.
func (r *Recipe) scoreTexts(ck *checkpoint.Checkpoint, head layer, row checkpoint.Tensor, bias []float32) {
	r.Scores, r.Texts, r.vocab, r.types = true, true, ck.Config.Vocab, ck.Config.Inputs.Types
	r.dense, r.score = []layer{head}, scorer{rows: [][]float32{allOf(row)}}
	if len(bias) == 1 {
		r.score.bias = bias[0]
	}
}
