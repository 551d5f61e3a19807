package cli

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/internal/cli/ui"
)

// TestSilentServer: no command waits without end for a server that accepts requests and does not answer.
func TestSilentServer(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	t.Cleanup(srv.Close)
	half := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { // it dies while it drains
		if r.Method != http.MethodPost {
			<-r.Context().Done()
		}
	}))
	t.Cleanup(half.Close)
	for _, c := range []struct{ args, server, want string }{
		{"status --timeout 200ms", srv.URL, "200ms"},
		{"top --once --timeout 200ms", srv.URL, "200ms"},
		{"cache --timeout 200ms", srv.URL, "200ms"},
		{"store list --timeout 200ms", srv.URL, "200ms"},
		{"events --timeout 200ms", srv.URL, "200ms"},
		{"events -f --timeout 200ms", srv.URL, "200ms"},
		{"undrain n --timeout 200ms", srv.URL, "200ms"},
		{"drain n --limit 200ms", srv.URL, "200ms"},
		{"drain n --limit 200ms", half.URL, "200ms"},
	} {
		t.Run(fmt.Sprint(c.args, " ", c.server == half.URL), func(t *testing.T) {
			t.Parallel()
			var stderr bytes.Buffer
			done := make(chan int, 1)
			go func() {
				done <- run(ui.Env{Ctx: t.Context(), Stdin: strings.NewReader(""), Stdout: t.Output(), Stderr: &stderr},
					append(strings.Fields(c.args), "--server", c.server))
			}()
			select {
			case status := <-done:
				if status != 1 || !strings.Contains(stderr.String(), c.want) {
					t.Errorf("status %d, %q; want 1 and %q", status, stderr.String(), c.want)
				}
			case <-time.After(10 * time.Second):
				t.Error("it waits after 10 s")
			}
		})
	}
}
