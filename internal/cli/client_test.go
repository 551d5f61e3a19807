package cli

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/client"
)

// TestStreamWaitsUntilReady checks that a stream waits only for a server that is not ready and sends
// Retry-After.
func TestStreamWaitsUntilReady(t *testing.T) {
	for _, c := range []struct {
		name    string
		refuse  int // number of refusals
		status  int
		retry   string
		asked   int
		wantErr string
	}{
		{"ready", 0, 0, "", 1, ""},
		{"not ready twice", 2, http.StatusServiceUnavailable, "0", 3, ""},
		{"without a time", 1, http.StatusServiceUnavailable, "", 1, "no node has joined"},
		{"too many requests", 1, http.StatusTooManyRequests, "0", 1, "no node has joined"},
	} {
		t.Run(c.name, func(t *testing.T) {
			asked := 0
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if asked++; asked <= c.refuse {
					if c.retry != "" {
						w.Header().Set("Retry-After", c.retry)
					}
					w.WriteHeader(c.status)
					fmt.Fprint(w, `{"error":{"message":"no node has joined"}}`)
					return
				}
				fmt.Fprint(w, "data: {\"choices\":[{\"text\":\"hello\"}]}\n\ndata: [DONE]\n\n")
			}))
			defer srv.Close()
			var notice, text bytes.Buffer
			cl := waitUntilReady(&client.Client{Server: srv.URL}, &notice)
			_, err := stream(context.Background(), cl, "/v1/completions", map[string]any{}, func(s string) { text.WriteString(s) }, nil)
			if got := fmt.Sprint(err); c.wantErr == "" && err != nil || !strings.Contains(got, c.wantErr) {
				t.Errorf("error %v, want %q", err, c.wantErr)
			}
			if c.wantErr == "" && text.String() != "hello" {
				t.Errorf("text %q", text.String())
			}
			if asked != c.asked {
				t.Errorf("%d requests, want %d", asked, c.asked)
			}
			if n := strings.Count(notice.String(), "no node has joined"); n > 1 || n == 1 != (c.asked > 1) {
				t.Errorf("the notice is %q", notice.String())
			}
		})
	}
}

// TestThoughtsArePrinted checks that thoughts are printed apart from the answer, also when the
// token limit ends the stream within a thought.
func TestThoughtsArePrinted(t *testing.T) {
	for _, c := range []struct{ deltas, text, thoughts string }{
		{`{"reasoning_content":"a "},{"reasoning_content":"thought"},{"content":"the "},{"content":"answer"}`, "the answer", "[thinking]\na thought\n[end of thinking]\n"},
		{`{"reasoning_content":"cut"}`, "", "[thinking]\ncut\n[end of thinking]\n"},
		{`{"content":"plain"}`, "plain", ""},
	} {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			for _, delta := range strings.SplitAfter(c.deltas, "},") {
				fmt.Fprintf(w, "data: {\"choices\":[{\"delta\":%s}]}\n\n", strings.TrimSuffix(delta, ","))
			}
			fmt.Fprint(w, "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"length\"}]}\n\ndata: [DONE]\n\n")
		}))
		var text, thoughts strings.Builder
		_, err := stream(t.Context(), client.New(srv.URL, ""), "/v1/chat/completions", map[string]any{},
			func(s string) { text.WriteString(s) }, &thoughts)
		srv.Close()
		if err != nil || text.String() != c.text || thoughts.String() != c.thoughts {
			t.Errorf("%s: text %q, thoughts %q, %v; want %q and %q", c.deltas, text.String(), thoughts.String(), err, c.text, c.thoughts)
		}
	}
}

// A server that dies during an answer ends the connection with or without the end of the HTTP body, or resets it.
// Each time the error reports an incomplete answer, and names a command.
func TestIncompleteAnswer(t *testing.T) {
	for name, end := range map[string]func(net.Conn){
		"a body that ends": func(c net.Conn) { _, _ = io.WriteString(c, "0\r\n\r\n") },
		"no end":           func(net.Conn) {},
		"a line that ends": func(c net.Conn) { _, _ = io.WriteString(c, "20\r\ndata: {") },
		"a reset":          func(c net.Conn) { _ = c.(*net.TCPConn).SetLinger(0) },
	} {
		t.Run(name, func(t *testing.T) {
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				fmt.Fprint(w, "data: {\"choices\":[{\"text\":\"hello\"}]}\n\n")
				w.(http.Flusher).Flush()
				c, _, err := w.(http.Hijacker).Hijack()
				if err != nil {
					t.Error(err)
					return
				}
				end(c)
				_ = c.Close()
			}))
			defer srv.Close()
			_, err := stream(t.Context(), &client.Client{Server: srv.URL}, "/v1/completions", map[string]any{}, func(string) {}, nil)
			if err == nil || !strings.Contains(err.Error(), "incomplete") || !strings.Contains(err.Error(), "shoal status") {
				t.Errorf("error %v, want that the answer is incomplete, and a command", err)
			}
		})
	}
}
