package cli

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/internal/cli/launch"
	"github.com/shoal-llm/shoal/internal/cli/ui"
)

// TestEvents checks that the command prints the list and then new events, and an end of a placement
// once, with its final cost.
func TestEvents(t *testing.T) {
	const up = `{"id":1,"revision":1,"at":"2026-01-02T03:04:05.006Z","kind":"node_up","node":"a","epoch":0}`
	const end = `{"id":2,"revision":%d,"at":"2026-01-02T03:04:06Z","kind":"node_lost","node":"b","epoch":1,"reason":"node b is gone",` +
		`"cost":{"open":%v,"next_epoch":2,"stall_ms":310,"streams":8,"went_on":%d,"failed":1,"silent_ms":420,"recomputed_tokens":60,"replayed_tokens":2,"restored_caches":5,"restored_replicas":1}}`
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Accept") != "text/event-stream" {
			fmt.Fprintf(w, `{"object":"list","data":[%s,%s]}`, strings.NewReplacer(`"id":1`, `"id":3`, `"a"`, `"c"`).Replace(up), up)
			return
		}
		if got := r.URL.Query().Get("from"); got != "1" {
			t.Errorf("the stream starts at %q, want 1", got)
		}
		fmt.Fprintf(w, ": keep-alive\n\nid: 2\ndata: "+end+"\n\nid: 3\ndata: "+end+"\n\n", 2, true, 3, 3, false, 7)
	}))
	defer srv.Close()
	var out bytes.Buffer
	c := eventsCmd{timeoutFlags: timeoutFlags{ServerFlags: launch.ServerFlags{Server: srv.URL}, Timeout: time.Minute}, Follow: true}
	if err := c.Run(&ui.Env{Ctx: context.Background(), Stdout: &out}); err == nil || !strings.Contains(err.Error(), "ended the stream") {
		t.Errorf("error %v", err)
	}
	want := []string{"epoch 0  node up  a\n", "epoch 0  node up  c\n", "epoch 1  node lost  b  (node b is gone)\n",
		"    epoch 2 after 310 ms; 7 of 8 streams continued, longest pause 420 ms; 62 tokens computed again, 6 caches kept; 1 failed\n"}
	rest := out.String()
	for _, w := range want {
		before, after, ok := strings.Cut(rest, w)
		if !ok || strings.Contains(before, "\n") { // the time precedes it
			t.Fatalf("%q does not follow in\n%s", w, out.String())
		}
		rest = after
	}
	if rest != "" {
		t.Errorf("unexpected output: %q", rest)
	}
}
