package routes

import (
	"testing"

	"github.com/shoal-llm/shoal/internal/server/api"
	"github.com/shoal-llm/shoal/internal/server/servertest"
)

// TestMount: batches are refused to keys with a limit on tokens, files are uploaded as
// multipart bodies, and every route has a description.
func TestMount(t *testing.T) {
	a, err := api.New(api.Config{Models: []string{"m"}, MaxModelLen: 16}, &servertest.Engine{}, servertest.Tokenizer{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	before := len(a.Routes())
	if _, err := NewMount(a, "no store"); err != nil {
		t.Fatal(err)
	}
	added := a.Routes()[before:]
	for _, r := range added {
		at := r.Method + " " + r.Path
		if r.Uncounted != (at == "POST /v1/batches") || r.Uploads != (at == "POST /v1/files") {
			t.Errorf("%s: uncounted %v, uploads %v", at, r.Uncounted, r.Uploads)
		}
		if len(r.Docs) == 0 || r.Docs[0].About == "" {
			t.Errorf("%s has no description", at)
		}
	}
	if len(added) != 15 {
		t.Errorf("%d routes, want 15", len(added))
	}
}
