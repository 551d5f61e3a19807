package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shoal-llm/shoal/internal/cli/ui"
)

// terminal opens a pseudo-terminal. The test uses user, and the program gets program.
func terminal(t *testing.T) (user, program *os.File) {
	t.Helper()
	user, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip("no pseudo-terminals here:", err)
	}
	t.Cleanup(func() { user.Close() })
	if err := unix.IoctlSetPointerInt(int(user.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(user.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if program, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { program.Close() })
	return user, program
}

// echo is a server that answers every chat with "fine", truncated by the token limit.
type echo struct {
	mu    sync.Mutex
	asked []string // last message of each request
}

func (s *echo) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodGet || r.URL.Path == "/tokenize" {
		fmt.Fprint(w, `{"model":"m","nodes":[]}`)
		return
	}
	var body struct{ Messages []turn }
	_ = json.NewDecoder(r.Body).Decode(&body)
	s.mu.Lock()
	last := body.Messages[len(body.Messages)-1].Content
	s.asked = append(s.asked, last)
	s.mu.Unlock()
	if last == "slow" { // an answer without an end
		fmt.Fprint(w, "data: {\"choices\":[{\"delta\":{\"content\":\"begun\"}}]}\n\n")
		w.(http.Flusher).Flush()
		select {
		case <-r.Context().Done():
		case <-time.After(linePatience + time.Second): // the test has already failed
		}
		return
	}
	fmt.Fprint(w, "data: {\"choices\":[{\"delta\":{\"content\":\"fine\"},\"finish_reason\":\"length\"}]}\n\ndata: [DONE]\n\n")
}

const linePatience = time.Minute

// TestChatAtATerminal types at a terminal: it edits a line, recalls messages of this chat and an
// earlier one, enters and pastes several lines, asks for help, reads that an answer is truncated,
// stops an answer, and exits with Ctrl-C.
func TestChatAtATerminal(t *testing.T) {
	state := t.TempDir()
	t.Setenv("XDG_STATE_HOME", state)
	if err := os.MkdirAll(filepath.Join(state, "shoal"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(state, "shoal", "history"), []byte("older\nold\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	sigint := &ui.Interrupts{}
	s := &echo{}
	srv := httptest.NewServer(s)
	defer srv.Close()
	user, program := terminal(t)
	seen := make(chan string, 1000)
	go func() {
		buf := make([]byte, 4096)
		for {
			n, err := user.Read(buf)
			if err != nil {
				close(seen)
				return
			}
			seen <- string(buf[:n])
		}
	}()
	var screen strings.Builder
	wait := func(want string) {
		t.Helper()
		late := time.After(linePatience)
		for !strings.Contains(screen.String(), want) {
			select {
			case text := <-seen:
				screen.WriteString(text)
			case <-late:
				t.Fatalf("%q is missing; the screen shows %q", want, screen.String())
			}
		}
		_, rest, _ := strings.Cut(screen.String(), want)
		screen.Reset()
		screen.WriteString(rest)
	}
	done := make(chan int, 1)
	go func() {
		done <- run(ui.Env{Ctx: context.Background(), Stdin: program, Stdout: program, Stderr: program, Interrupts: sigint},
			[]string{"chat", "--server", srv.URL})
	}()
	wait("> ")
	fmt.Fprint(user, "\x1b[A\x1b[A\r") // a message of an earlier chat
	wait("[cut after")
	wait("> ")
	fmt.Fprint(user, "helo\x7flo\r") // the o is deleted
	wait("[cut after")
	wait("> ")
	fmt.Fprint(user, "\x1b[A!\r") // the last message, extended
	wait("[cut after")
	wait("> ")
	fmt.Fprint(user, "/help\r")
	wait("/reset")
	wait("> ")
	fmt.Fprint(user, "\"\"\"one\r")
	wait(". ")
	fmt.Fprint(user, "two\"\"\"\r")
	wait("[cut after")
	wait("> ")
	fmt.Fprint(user, "three\\\r")
	wait(". ")
	fmt.Fprint(user, "four\r")
	wait("[cut after")
	wait("> ")
	fmt.Fprint(user, "\x1b[200~five\rsix\x1b[201~\r")
	wait("[cut after")
	wait("> ")
	fmt.Fprint(user, "\x1b[A\x1b[A\r") // the message before the last, with two lines
	wait("three⏎four")
	wait("[cut after")
	wait("> ")
	fmt.Fprint(user, "\r\r") // empty lines do nothing
	wait("> ")
	wait("> ")
	fmt.Fprint(user, "slow\r")
	wait("begun")
	if !sigint.Handled() {
		t.Error("Ctrl-C is not handled during an answer")
	}
	wait("[stopped]")
	wait("> ")
	if !sigint.Handled() {
		t.Error("Ctrl-C right after an answer ends the chat")
	}
	fmt.Fprint(user, "half a line\x03")
	wait("> ")
	fmt.Fprint(user, "half\x03whole\r") // the line is cleared
	wait("[cut after")
	wait("> ")
	fmt.Fprint(user, "\"\"\"begun\r") // a message of several lines is cleared too
	wait(". ")
	fmt.Fprint(user, "\x03")
	wait("> ")
	time.Sleep(interruptGrace)
	if sigint.Handled() {
		t.Error("a signal is handled without an answer")
	}
	// The terminal is in raw mode after a prompt. Before, Ctrl-C would be a signal of the terminal,
	// and this terminal has no process group.
	fmt.Fprint(user, "\x03")
	wait("once more")
	wait("> ")
	fmt.Fprint(user, "still\r") // only a second Ctrl-C right after the first one exits
	wait("[cut after")
	wait("> ")
	fmt.Fprint(user, "\x03\x03\x03") // these count as meant for the answer
	for range 3 {
		wait("once more")
		wait("> ")
	}
	time.Sleep(interruptGrace)
	fmt.Fprint(user, "\x03")
	wait("once more")
	wait("> ")
	fmt.Fprint(user, "\x03")
	select {
	case status := <-done:
		if status != 0 {
			t.Errorf("status %d", status)
		}
	case <-time.After(linePatience):
		t.Fatal("Ctrl-C does not end the chat")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if strings.Join(s.asked, ",") != "older,hello,hello!,one\ntwo,three\nfour,five\nsix,three\nfour,slow,whole,still" {
		t.Errorf("the requests are %q", s.asked)
	}
	kept, err := os.ReadFile(filepath.Join(state, "shoal", "history"))
	if err != nil || !strings.HasPrefix(string(kept), "older\nold\nolder\nhello\nhello!\n") {
		t.Errorf("the history holds %q (%v)", kept, err)
	}
}

// TestInterruptWhileInputIsAwaited checks that a signal ends a chat and a run that wait for input.
func TestInterruptWhileInputIsAwaited(t *testing.T) {
	srv := httptest.NewServer(&echo{})
	defer srv.Close()
	for _, command := range []string{"chat", "run"} {
		r, w := io.Pipe()
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan int, 1)
		go func() {
			done <- run(ui.Env{Ctx: ctx, Stdin: r, Stdout: io.Discard, Stderr: io.Discard}, []string{command, "--server", srv.URL})
		}()
		time.AfterFunc(50*time.Millisecond, cancel)
		select {
		case status := <-done:
			if status != 130 {
				t.Errorf("%s: status %d", command, status)
			}
		case <-time.After(linePatience):
			t.Fatalf("%s does not end", command)
		}
		w.Close()
	}
}

// TestRunOfAModel checks that run starts a model that no server has, and that ps shows a cluster.
func TestRunOfAModel(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if status := run(ui.Env{Ctx: context.Background(), Stdin: strings.NewReader("x"), Stdout: &out, Stderr: &out},
		[]string{"run", "--server", "127.0.0.1:1", dir}); status != 1 ||
		!strings.Contains(out.String(), "serves nothing") || !strings.Contains(out.String(), "architectures") {
		t.Errorf("status %d: %s", status, out.String())
	}
	srv := httptest.NewServer(&echo{})
	defer srv.Close()
	out.Reset()
	if status := run(ui.Env{Ctx: context.Background(), Stdout: &out, Stderr: &out}, []string{"ps", "--server", srv.URL}); status != 0 ||
		!strings.Contains(out.String(), "model m") {
		t.Errorf("ps: status %d: %s", status, out.String())
	}
}
