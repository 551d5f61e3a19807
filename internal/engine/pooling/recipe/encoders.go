package recipe

import (
	"path/filepath"
	"slices"

	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/pooling"
)

// readEncoder reads the head of a "...ForSequenceClassification" of an encoder with one label. It scores a
// query and a document that the tokenizer encodes as two texts:
//
//	BERT         classifier tanh(pooler.dense x)                      x: the first token
//	XLM-RoBERTa  classifier.out_proj tanh(classifier.dense x)         x: the first token
//	ModernBERT   classifier LayerNorm(GELU(head.dense x), head.norm)  x: by classifier_pooling
func readEncoder(r *Recipe, ck *checkpoint.Checkpoint) (bool, error) {
	if !ck.Config.NonCausal || !ck.Config.Headless {
		return false, nil
	}
	head, row := layer{activation: "tanh"}, "classifier"
	switch {
	case has(ck, "classifier.out_proj.weight"):
		head.take(ck, "classifier.dense")
		row = "classifier.out_proj"
	case has(ck, "classifier.weight") && has(ck, "pooler.dense.weight"):
		head.take(ck, "pooler.dense")
	case has(ck, "classifier.weight") && has(ck, "head.dense.weight"):
		head.take(ck, "head.dense")
		head.activation, head.norm, head.eps = "gelu", vector(ck, "head.norm.weight"), ck.Config.NormEps
	default:
		return false, nil
	}
	t, err := ck.Tensor(row + ".weight")
	if err != nil || t.Rows() != 1 {
		return false, bad(ck.Dir, "%s has %d labels; scores need exactly 1", row, t.Rows())
	}
	if head.in == 0 || head.norm == nil && head.activation == "gelu" {
		return false, bad(ck.Dir, "the head of %s is incomplete", row)
	}
	r.Source, r.Pool = row+".weight", pooling.CLS
	r.scoreTexts(ck, head, t, vector(ck, row+".bias"))
	var config struct {
		Pooling string `json:"classifier_pooling"`
	}
	if _, err := readSmall(filepath.Join(ck.Dir, "config.json"), &config); err != nil {
		return false, err
	}
	if config.Pooling == "mean" {
		r.Pool = pooling.Mean
	}
	return true, nil
}

// take reads a dense layer.
func (l *layer) take(ck *checkpoint.Checkpoint, module string) {
	if t, err := ck.Tensor(module + ".weight"); err == nil {
		l.in, l.out, l.w, l.bias = t.Cols(), t.Rows(), allOf(t), vector(ck, module+".bias")
	}
}

func has(ck *checkpoint.Checkpoint, name string) bool {
	_, err := ck.Tensor(name)
	return err == nil
}

// vector reads a vector; nil: it is not there.
func vector(ck *checkpoint.Checkpoint, name string) []float32 {
	t, err := ck.Tensor(name)
	if err != nil || len(t.Shape) != 1 {
		return nil
	}
	v := make([]float32, t.Shape[0])
	t.Row(v, 0, 0, len(v))
	return v
}

// Typed returns the ids that a plan has for tokens with types. Types that the model does not have count
// as its last one.
func (r *Recipe) Typed(tokens, types []int32) []int32 {
	out := slices.Clone(tokens)
	c := model.Config{Vocab: r.vocab, Inputs: model.Inputs{Types: r.types}}
	c.Typed(out, types)
	return out
}
