package checkpoint_test

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/model/modeltest"
)

// A head that is not the embedding must not be ignored because the config ties both.
func TestTiedHeadOfItsOwn(t *testing.T) {
	dir := write(t, modeltest.Small(), 1)
	plain := open(t, dir)
	e, err := plain.Tensor(model.Embedding)
	check(t, err)
	other := slices.Clone(e.Data)
	other[len(other)-1] ^= 1
	if c := open(t, withTensor(t, dir, model.Head, "BF16", e.Shape, e.Data)); c.Hash() != plain.Hash() {
		t.Error("a copy of the embedding counts")
	}
	own := withTensor(t, dir, model.Head, "BF16", e.Shape, other)
	if _, err := checkpoint.Open(own); !errors.Is(err, model.ErrMismatch) || !strings.Contains(err.Error(), "tie_word_embeddings") ||
		!strings.Contains(err.Error(), model.Head) {
		t.Errorf("a tied head with another value: %v", err)
	}
	edit(t, filepath.Join(own, "config.json"), `"tie_word_embeddings": true`, `"tie_word_embeddings": false`)
	if c := open(t, own); c.Hash() == plain.Hash() || c.Config.Tied {
		t.Error("the head is not used")
	}
}
