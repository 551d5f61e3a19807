package recipe

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"slices"
	"strings"

	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/modelfile"
	"github.com/shoal-llm/shoal/internal/engine/pooling"
	"github.com/shoal-llm/shoal/internal/hub/layout"
)

// ErrRecipe is an error in the files that describe a recipe, or in the options that override them.
var ErrRecipe = errors.New("recipe")

func bad(file, format string, args ...any) error {
	return fmt.Errorf("%w: %s: %s", ErrRecipe, file, fmt.Sprintf(format, args...))
}

// Options override the files.
type Options struct {
	// Pooling is a pooling method's name, "none" (the model makes no vectors), or "" or "auto": the
	// method in the files.
	Pooling string
	// ScoreTokens are one or two tokens. The score of a prompt is the logit of the first after the
	// last token, minus that of the second.
	ScoreTokens []string
	// Token returns the id of a token of the vocabulary.
	Token func(text string) (id int32, ok bool)
}

// Read returns the recipe of a model; nil: it makes no vectors.
func Read(ck *checkpoint.Checkpoint, o Options) (*Recipe, error) {
	if o.Pooling == pooling.None.String() {
		if ck.Config.Headless || ck.Config.NonCausal {
			return nil, fmt.Errorf("%w: pooling none: this model only makes vectors; choose last, mean or cls", ErrRecipe)
		}
		return nil, nil
	}
	r := &Recipe{Width: ck.Config.Hidden, Normalize: true}
	for _, read := range []func(*Recipe, *checkpoint.Checkpoint) (bool, error){readEncoder, readModules, readClassifier, readGGUF} {
		found, err := read(r, ck)
		if err != nil {
			return nil, err
		}
		if r.Only = found; found {
			break
		}
	}
	if name := strings.ToLower(layout.NameOf(ck.Dir)); !r.Only && strings.Contains(name, "qwen3-reranker") && o.ScoreTokens == nil {
		r.Source, o.ScoreTokens = "the name of the folder", []string{"yes", "no"}
	}
	if len(o.ScoreTokens) > 0 {
		if err := r.scoreTokens(ck, o); err != nil {
			return nil, err
		}
	}
	if o.Pooling != "" && o.Pooling != "auto" {
		method, err := pooling.Parse(o.Pooling)
		if err != nil {
			return nil, err
		}
		r.Pool, r.Source = method, "the options"
	}
	if r.Pool == pooling.None {
		if ck.Config.Headless || ck.Config.NonCausal {
			return nil, fmt.Errorf("%w: %s: this model only makes vectors, and no file names the pooling (modules.json, or pooling_type in "+
				"GGUF): state the pooling, last, mean or cls", ErrRecipe, ck.Dir)
		}
		return nil, nil
	}
	r.Only = r.Only || ck.Config.Headless || ck.Config.NonCausal
	return r, r.finish(ck)
}

// finish checks that the parts fit each other, and computes the fingerprint.
func (r *Recipe) finish(ck *checkpoint.Checkpoint) error {
	width := ck.Config.Hidden
	h := sha256.New()
	numbers := func(x []float32) {
		for _, v := range x {
			_ = binary.Write(h, binary.LittleEndian, math.Float32bits(v)) // a hash does not fail
		}
	}
	for i, l := range r.dense {
		if l.in != width {
			return bad(ck.Dir, "dense layer %d reads %d elements, and its input has %d", i+1, l.in, width)
		}
		for _, v := range [][]float32{l.bias, l.norm} {
			if v != nil && len(v) != l.out {
				return bad(ck.Dir, "dense layer %d makes %d elements, and its bias or its norm has %d", i+1, l.out, len(v))
			}
		}
		width = l.out
		fmt.Fprintln(h, "dense", l.in, l.out, l.activation)
		numbers(l.w)
		numbers(l.bias)
		numbers(l.norm)
	}
	if r.Scores && len(r.score.rows) == 0 {
		return bad(ck.Dir, "the scorer has no rows")
	}
	for _, row := range r.score.rows {
		if len(row) != width {
			return bad(ck.Dir, "the scorer reads %d elements, and its input has %d", len(row), width)
		}
		numbers(row)
	}
	r.Width = width
	fmt.Fprintln(h, "recipe 1", r.Pool, r.Normalize, r.Scores, r.Pair, r.Default, r.score.bias, r.score.scale, r.score.limit)
	if r.Texts {
		fmt.Fprintln(h, "texts", r.vocab, r.types)
	}
	for _, name := range slices.Sorted(maps.Keys(r.Prompts)) {
		fmt.Fprintf(h, "%q %q\n", name, r.Prompts[name])
	}
	r.sum = h.Sum(nil)
	return nil
}

// qwen3Pair is the prompt of Qwen3-Reranker (its model card; sentence-transformers' chat template).
const qwen3Pair = "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct provided. " +
	"Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n" +
	"<|im_start|>user\n<Instruct>: {instruction}\n<Query>: {query}\n<Document>: " +
	"{document}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"

// Instruction replaces {instruction} where a request has none.
const Instruction = "Given a web search query, retrieve relevant passages that answer the query"

// scoreTokens makes the logits of tokens the score.
func (r *Recipe) scoreTokens(ck *checkpoint.Checkpoint, o Options) error {
	if ck.Config.Headless {
		return fmt.Errorf("%w: scores by tokens need an output head, which %s does not have", ErrRecipe, ck.Dir)
	}
	if len(o.ScoreTokens) > 2 {
		return fmt.Errorf("%w: %d tokens; the score is the logit of one token, or the difference of two", ErrRecipe, len(o.ScoreTokens))
	}
	var ids []int32
	for _, text := range o.ScoreTokens {
		id, ok := o.Token(text)
		if !ok {
			return fmt.Errorf("%w: %q is not one token of the vocabulary of %s", ErrRecipe, text, ck.Dir)
		}
		ids = append(ids, id)
	}
	r.Pool = pooling.Last
	if r.Source == "" {
		r.Source = "the options"
	}
	if strings.HasPrefix(ck.Config.Architecture, "Qwen3") && slices.Equal(o.ScoreTokens, []string{"yes", "no"}) {
		r.Pair = qwen3Pair
	}
	return r.logits(ck, ids)
}

// logits makes the score of rows of the output head.
func (r *Recipe) logits(ck *checkpoint.Checkpoint, ids []int32) error {
	head, err := ck.Tensor(ck.Config.HeadName())
	if err != nil {
		return fmt.Errorf("%w: %w", ErrRecipe, err)
	}
	r.Scores, r.score = true, scorer{scale: ck.Config.Multipliers.Logits, limit: ck.Config.LogitCap}
	for _, id := range ids {
		if id < 0 || int(id) >= head.Rows() {
			return bad(ck.Dir, "token %d is not one of %d tokens", id, head.Rows())
		}
		row := make([]float32, head.Cols())
		head.Row(row, int(id), 0, len(row))
		r.score.rows = append(r.score.rows, row)
	}
	return nil
}

// readClassifier reads the score of a "...ForSequenceClassification" with one label, of its last token.
func readClassifier(r *Recipe, ck *checkpoint.Checkpoint) (bool, error) {
	t, err := ck.Tensor("score.weight")
	if err != nil || !ck.Config.Headless {
		return false, nil //nolint:nilerr // it has no classifier
	}
	if t.Rows() != 1 {
		return false, bad(ck.Dir, "score.weight has %d labels; scores need exactly 1", t.Rows())
	}
	row := make([]float32, t.Cols())
	t.Row(row, 0, 0, len(row))
	r.Source, r.Pool, r.Scores, r.score = "score.weight", pooling.Last, true, scorer{rows: [][]float32{row}}
	if strings.HasPrefix(ck.Config.Architecture, "Qwen3") {
		r.Pair = qwen3Pair
	}
	return true, nil
}

// readSmall reads a JSON file of a model folder; false: it is not there.
func readSmall(path string, v any) (bool, error) {
	text, err := modelfile.Read(path, 1<<20)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err == nil {
		err = modelfile.Unmarshal(text, v)
	}
	if err != nil {
		return false, fmt.Errorf("%w: %s: %w", ErrRecipe, path, err)
	}
	return true, nil
}
