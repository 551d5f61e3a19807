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
	"sync/atomic"
	"testing"

	"github.com/shoal-llm/shoal/client/wire"
	"github.com/shoal-llm/shoal/internal/cli/ui"
)

// TestStatusExits checks the exit status: 0 only if the cluster serves, 3 while it waits for nodes, 1 if
// no server answers or the key is wrong.
func TestStatusExits(t *testing.T) {
	for _, c := range []struct {
		name           string
		ready, cluster int // HTTP statuses of /ready and /v1/cluster
		status         int
		out, stderr    string
	}{
		{"serves", 200, 200, 0, "model m", ""},
		{"gathers", 503, 200, exitNotServing, "model m", "not serving: gathering nodes: 1 of 4"},
		{"standby", 503, 503, exitNotServing, "", "not serving: gathering nodes: 1 of 4"},
		{"wrong key", 200, 401, 1, "", "401 Unauthorized: no"},
		{"another server", 404, 404, 1, "", "404"},
	} {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch {
			case r.URL.Path == "/ready" && c.ready == 503:
				w.WriteHeader(503)
				fmt.Fprint(w, `{"status":"not_ready","reason":"gathering nodes: 1 of 4"}`)
			case r.URL.Path == "/ready":
				w.WriteHeader(c.ready)
			case c.cluster == 200:
				fmt.Fprint(w, `{"model":"m","nodes":[]}`)
			default:
				w.WriteHeader(c.cluster)
				fmt.Fprint(w, `{"error":{"message":"no"}}`)
			}
		}))
		for _, args := range [][]string{nil, {"--json"}} {
			var out, stderr bytes.Buffer
			status := run(ui.Env{Ctx: context.Background(), Stdout: &out, Stderr: &stderr}, append([]string{"status", "--server", srv.URL}, args...))
			if args != nil {
				c.out = strings.ReplaceAll(c.out, "model m", `"model": "m"`)
			}
			if status != c.status || !strings.Contains(out.String(), c.out) ||
				!strings.Contains(stderr.String(), c.stderr) || c.stderr == "" && stderr.Len() > 0 {
				t.Errorf("%s %q: status %d, %q, %q; want %d, %q, %q", c.name, args, status, &out, &stderr, c.status, c.out, c.stderr)
			}
		}
		srv.Close()
	}
}

// TestStatusWaits checks that --wait returns when the cluster serves, even if it did not listen at
// first.
func TestStatusWaits(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var asked atomic.Int32
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/ready" {
			switch asked.Add(1) {
			case 1: // a start on a busy machine
				<-r.Context().Done()
				return
			case 2:
				w.WriteHeader(503)
				fmt.Fprint(w, `{"reason":"loading"}`)
				return
			}
		}
		fmt.Fprint(w, `{"model":"m","nodes":[]}`)
	})
	srv := &http.Server{Handler: handler}
	defer srv.Close()
	go func() { _ = srv.Serve(l) }()
	var out, stderr bytes.Buffer
	if status := run(ui.Env{Ctx: context.Background(), Stdout: &out, Stderr: &stderr}, []string{"status", "--wait",
		"1m", "--timeout", "1s", "--server", l.Addr().String()}); status != 0 || asked.Load() != 3 || stderr.Len() > 0 {
		t.Errorf("status %d after %d requests: %s%s", status, asked.Load(), &out, &stderr)
	}
	for args, want := range map[string]int{"--wait=300ms": 1, "--wait=-1s": 1} {
		if status := run(ui.Env{Ctx: context.Background(), Stdout: io.Discard, Stderr: io.Discard},
			[]string{"status", args, "--server", "127.0.0.1:1"}); status != want {
			t.Errorf("%s: status %d, want %d", args, status, want)
		}
	}
}

// TestStatusOfReading: status counts the tokens of sequences that read their text. Idle sessions, contexts and sequences
// that only decode are not counted.
func TestStatusOfReading(t *testing.T) {
	for _, c := range []struct {
		sequences []wire.SequenceState
		want      string
	}{
		{[]wire.SequenceState{{State: "prefill", Prompt: 500, Cached: 100}, {State: "decoding", Prompt: 40, Output: 11, Cached: 20}},
			"reading: 120 of 550 tokens of 2 sequences\n"},
		{[]wire.SequenceState{{State: "decoding", Prompt: 40, Output: 11, Cached: 50}, {State: "decoding", Prompt: 40, Cached: 30}},
			"reading: 30 of 40 tokens of 1 sequence\n"},
		{[]wire.SequenceState{{State: "decoding", Prompt: 40, Output: 11, Cached: 50}, {State: "session", Prompt: 40, Output: 9, Cached: 3},
			{State: "context", Prompt: 9, Cached: 3}, {State: "ending", Prompt: 9, Cached: 3}}, ""},
	} {
		var b bytes.Buffer
		printReading(&b, &wire.ClusterState{Sequences: c.sequences})
		if b.String() != c.want {
			t.Errorf("%+v: %q, want %q", c.sequences, b.String(), c.want)
		}
	}
}

// TestStatusOfTwoModels: status lists every model with its part of the memory.
func TestStatusOfTwoModels(t *testing.T) {
	var b bytes.Buffer
	printStatus(&b,
		&wire.ClusterState{Model: "chat", Nodes: []wire.NodeState{{ID: "node-0", KVBudgetBytes: 3 << 30}}, Models: []wire.ModelState{
			{Model: "chat", Policy: "knorm", Weights: "q8_0", Running: 2, KVUsedBytes: 1 << 20, KVBudgetBytes: 2 << 30},
			{Model: "vectors", Policy: "full", Weights: "bf16", KVBudgetBytes: 1 << 30}}})
	lines := strings.Split(b.String(), "\n")
	if !strings.HasPrefix(lines[0], "model chat, vectors ") {
		t.Errorf("the first line is %q", lines[0])
	}
	var rows [][]string
	for _, l := range lines[3:] {
		rows = append(rows, strings.Fields(l))
	}
	for i, want := range []string{"model policy weights running waiting tokens/s cache used prefixes cache budget",
		"chat knorm q8_0 2 0 0.0 1.0 MiB 0 B 2.00 GiB", "vectors full bf16 0 0 0.0 0 B 0 B 1.00 GiB"} {
		if got := strings.Join(rows[i], " "); got != want {
			t.Errorf("line %d is %q, want %q", i, got, want)
		}
	}
}
