package cli

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/shoal-llm/shoal/client"
	"github.com/shoal-llm/shoal/internal/cli/models"
	"github.com/shoal-llm/shoal/internal/cli/ui"
)

// TestServesAdapter checks that an adapter is recognized on a server, which reports the folder of the
// merged weights as root.
func TestServesAdapter(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	const adapter = "../../models/fry-tools"
	root, err := models.Merged(ui.Quiet(t.Context()), adapter)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := json.NewEncoder(w).Encode(map[string]any{"data": []any{map[string]any{"id": "fry-tools", "root": root}}}); err != nil {
			t.Error(err)
		}
	}))
	defer s.Close()
	c := client.New(s.URL, "")
	for path, want := range map[string]bool{adapter: true, root: true, "../../models/fry": false} {
		if _, yes := serverHasCheckpoint(ui.Quiet(t.Context()), c, path); yes != want {
			t.Errorf("%s is served: %v, want %v", path, yes, want)
		}
	}
}
