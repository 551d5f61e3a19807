package cluster

import (
	"errors"
	"net/http"
	"testing"

	"github.com/shoal-llm/shoal/internal/server/api"
	"github.com/shoal-llm/shoal/internal/server/servertest"
)

// TestRoutesThatChangeTheClusterNeedAnOperator: a key with the role user may read the cluster's
// routes, and change nothing.
func TestRoutesThatChangeTheClusterNeedAnOperator(t *testing.T) {
	a, err := api.New(api.Config{Models: []string{"m"}, MaxModelLen: 16}, &servertest.Engine{}, servertest.Tokenizer{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	before := len(a.Routes())
	c := &Coordinator{engines: engines{&core{site: &site{}}}}
	if err := errors.Join(c.ServeNodes(a), c.ServeStore(a), c.ServeEvents(a)); err != nil {
		t.Fatal(err)
	}
	added := a.Routes()[before:]
	for _, r := range added {
		if changes := r.Method != http.MethodGet; r.Operator != changes {
			t.Errorf("%s %s: operator %v, want %v", r.Method, r.Path, r.Operator, changes)
		}
		if len(r.Docs) == 0 || r.Docs[0].About == "" {
			t.Errorf("%s %s has no description", r.Method, r.Path)
		}
	}
	if len(added) != 6 {
		t.Errorf("%d routes, want 6", len(added))
	}
}
