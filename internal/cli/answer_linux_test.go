package cli

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/internal/cli/ui"
)

// The text of a model does not control the terminal: its control characters are shown as U+FFFD. In a file or pipe, and in
// what a chat sends back, they stay.
func TestAnswerDoesNotControlTheTerminal(t *testing.T) {
	const said = "a\x1b]52;c;QQ==\x07b\x1b[2Jc\u009b2Jd\re\tf"
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet || r.URL.Path == "/tokenize" {
			fmt.Fprint(w, `{"model":"m","nodes":[]}`)
			return
		}
		fmt.Fprintf(w, "data: {\"choices\":[{\"delta\":{\"reasoning_content\":%q}}]}\n\n", "h\u009bm")
		fmt.Fprint(w, `data: {"choices":[{"delta":{"content":"a\u001b]52;c;QQ==\u0007b\u001b[2Jc\u009b2Jd\re\tf"},"finish_reason":"stop"}]}`+
			"\n\ndata: [DONE]\n\n")
	}))
	defer srv.Close()
	user, program := terminal(t)
	status := run(ui.Env{Ctx: context.Background(), Stdin: strings.NewReader(""), Stdout: program, Stderr: program},
		[]string{"run", "--server", srv.URL, "What is this?"})
	fmt.Fprint(program, "END")
	_ = user.SetReadDeadline(time.Now().Add(time.Minute))
	var shown []byte
	for buf := make([]byte, 4096); !bytes.Contains(shown, []byte("END")); {
		n, err := user.Read(buf)
		if shown = append(shown, buf[:n]...); err != nil {
			t.Fatalf("%q, %v", shown, err)
		}
	}
	if text := string(shown); status != 0 || strings.ContainsAny(text, "\x1b\x07\u009b") ||
		!strings.Contains(text, "a\uFFFD]52;c;QQ==\uFFFDb\uFFFD[2Jc") ||
		!strings.Contains(text, "d\uFFFDe") || !strings.Contains(text, "h\uFFFDm") {
		t.Errorf("status %d, the terminal got %q", status, text)
	}
	var out bytes.Buffer
	if status := run(ui.Env{Ctx: context.Background(), Stdin: strings.NewReader(""), Stdout: &out, Stderr: io.Discard},
		[]string{"run", "--server", srv.URL, "What is this?"}); status != 0 || out.String() != said+"\n" {
		t.Errorf("status %d, the pipe got %q", status, out.String())
	}
}
