package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/cli/ui"
)

// TestRunWords checks that flags can be before, after and between a model and a text.
func TestRunWords(t *testing.T) {
	for _, args := range [][]string{
		{"-t", "8", "fry", "func add(", "b"},
		{"fry", "-t", "8", "func add(", "b"},
		{"fry", "func add(", "b", "-t", "8"},
	} {
		var c commands
		p, err := parser(&c, ui.Quiet(context.Background()))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.Parse(append([]string{"run"}, args...)); err != nil || c.Run.MaxTokens != 8 ||
			!slices.Equal(c.Run.words(), []string{"fry", "func add(", "b"}) {
			t.Errorf("%q gives %q, %d tokens: %v", args, c.Run.words(), c.Run.MaxTokens, err)
		}
	}
}

// recorder is a server of the model "ours", with or without a chat template. It records
// each request that it answers.
type recorder struct {
	base  bool // no chat template
	asked []string
}

func (s *recorder) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodGet {
		fmt.Fprint(w, `{"data":[{"id":"ours","root":"/nowhere"}]}`)
		return
	}
	var body struct {
		Model, Prompt string
		Messages      []turn
	}
	_ = json.NewDecoder(r.Body).Decode(&body)
	chat := r.URL.Path == "/v1/chat/completions"
	if (chat || r.URL.Path == "/tokenize") && s.base {
		w.WriteHeader(http.StatusBadRequest)
		fmt.Fprint(w, `{"error":{"message":"no template","code":"no_chat_template"}}`)
		return
	}
	if r.URL.Path == "/tokenize" {
		fmt.Fprint(w, `{}`)
		return
	}
	if chat {
		s.asked = append(s.asked, fmt.Sprint("chat ", body.Model, body.Messages))
		fmt.Fprint(w, "data: {\"choices\":[{\"delta\":{\"content\":\"fine\"},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n")
		return
	}
	s.asked = append(s.asked, fmt.Sprint("text ", body.Model, "[", body.Prompt, "]"))
	fmt.Fprint(w, "data: {\"choices\":[{\"text\":\"fine\",\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n")
}

// TestRunAsks checks that run uses the chat template unless the model has none or --raw is set, and
// that it accepts a model name of the server.
func TestRunAsks(t *testing.T) {
	for _, c := range []struct {
		args         []string
		stdin        string
		base         bool
		want, stderr string // the request, and part of standard error
		status       int
	}{
		{args: []string{"What is Go?"}, want: "chat [{user What is Go?}]"},
		{args: []string{"ours", "What is Go?"}, want: "chat ours[{user What is Go?}]"},
		{args: []string{"--system", "Be brief.", "ours", "What is Go?"}, want: "chat ours[{system Be brief.} {user What is Go?}]"},
		{args: []string{"--raw", "What is Go?"}, want: "text [What is Go?]"},
		{args: []string{"--raw", "ours", "What is Go?"}, want: "text ours[What is Go?]"},
		{args: []string{"What is Go?"}, base: true, want: "text [What is Go?]"},
		{args: []string{"ours", "What is Go?"}, base: true, want: "text ours[What is Go?]"},
		{args: nil, stdin: "What is Go?\n", want: "chat [{user What is Go?}]"},
		{args: []string{"ours", "-"}, stdin: "What is Go?\n", want: "chat ours[{user What is Go?}]"},
		{args: []string{"--raw"}, stdin: "What is Go?\n", want: "text [What is Go?\n]"},
		{args: []string{"hello"}, want: "chat [{user hello}]", stderr: `"hello" is used as the text`},
		{args: nil, stdin: " \n", status: 1, stderr: "there is no text"},
		{args: []string{"--raw", "--system", "x", "What is Go?"}, status: 1, stderr: "remove --system"},
		{args: []string{"--system", "x", "What is Go?"}, base: true, status: 1, stderr: "no template"},
		{args: []string{"llama3.2", "What is Go?"}, status: 1, stderr: `no model "llama3.2"`},
		{args: []string{"./models/nope", "What is Go?"}, status: 1, stderr: `no model "./models/nope"`},
	} {
		s := &recorder{base: c.base}
		srv := httptest.NewServer(s)
		var out, stderr bytes.Buffer
		status := run(ui.Env{Ctx: context.Background(), Stdin: strings.NewReader(c.stdin), Stdout: &out, Stderr: &stderr},
			append([]string{"run", "--server", srv.URL}, c.args...))
		srv.Close()
		if got := strings.Join(s.asked, ";"); status != c.status || got != c.want || !strings.Contains(stderr.String(), c.stderr) ||
			c.stderr == "" && stderr.Len() > 0 || c.want != "" && out.String() != "fine\n" {
			t.Errorf("run %q (base model: %v): status %d, asked %q, wrote %q and %q; want %d, %q, %q",
				c.args, c.base, status, got, &out, &stderr, c.status, c.want, c.stderr)
		}
	}
	var stderr bytes.Buffer
	if status := run(ui.Env{Ctx: context.Background(), Stdout: io.Discard, Stderr: &stderr}, []string{"run", "--server", "127.0.0.1:1", "/nonexistent", "hello"}); status != 1 || !strings.Contains(stderr.String(), `no model "/nonexistent"`) {
		t.Errorf("without a server: %d %s", status, &stderr)
	}
	stderr.Reset()
	if status := run(ui.Env{Ctx: context.Background(), Stdout: io.Discard, Stderr: &stderr}, []string{"run", "--server", "127.0.0.1:1", "some text"}); status != 1 || stderr.String() != "shoal: no answer from http://127.0.0.1:1: connection refused (is the cluster up? `shoal up` starts one)\n" {
		t.Errorf("without a server: %d %s", status, &stderr)
	}
}
