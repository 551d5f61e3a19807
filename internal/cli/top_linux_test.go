package cli

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shoal-llm/shoal/internal/cli/ui"
)

// TestTopAtATerminal checks that q, Ctrl-C and a signal end top with status 0, restore the mode of the
// terminal and print no stray characters. The key h explains the columns. An idle cluster has no rate.
func TestTopAtATerminal(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"model":"m","nodes":[{"id":"a","state":"ready","share":1}],"store":{"durability":"single","replicas":1,"wanted":3}}`)
	}))
	defer srv.Close()
	for name, c := range map[string]struct {
		keys string
		want string // text on the screen before the end
	}{
		"q":          {"q", "q quits"},
		"Ctrl-C":     {"\x03", "q quits"},
		"the legend": {"h", "straggler"},
		"a signal":   {"", "0.0 tokens/s   idle   running 0"},
	} {
		t.Run(name, func(t *testing.T) {
			user, program := terminal(t)
			mode := func() unix.Termios {
				m, err := unix.IoctlGetTermios(int(program.Fd()), unix.TCGETS)
				if err != nil {
					t.Fatal(err)
				}
				return *m
			}
			before := mode()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			done := make(chan int, 1)
			go func() {
				done <- run(ui.Env{Ctx: ctx, Stdin: program, Stdout: program, Stderr: program}, []string{"top", "--server", srv.URL})
			}()
			screen := newScreen(user)
			screen.wait(t, "h explains")
			fmt.Fprint(user, c.keys)
			screen.wait(t, c.want)
			switch name {
			case "the legend":
				fmt.Fprint(user, "q")
			case "a signal":
				cancel()
			}
			select {
			case status := <-done:
				if status != 0 {
					t.Errorf("status %d", status)
				}
			case <-time.After(linePatience):
				t.Fatal("top does not exit")
			}
			if after := mode(); after != before {
				t.Errorf("the terminal is left in another mode: %+v, before %+v", after, before)
			}
			screen.rest()
			if text := screen.String(); strings.Contains(text, "^C") || !strings.HasSuffix(text, "\x1b[J") {
				t.Errorf("the screen ends with %q", text[max(0, len(text)-40):])
			}
		})
	}
}

// TestSmallTerminal: no line and no screen is larger than the terminal, which would wrap or scroll it.
func TestSmallTerminal(t *testing.T) {
	nodes := make([]string, 30)
	for i := range nodes {
		nodes[i] = fmt.Sprintf(`{"id":"node-%d","state":"ready","share":0.03}`, i)
	}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `{"model":"m","nodes":[%s]}`, strings.Join(nodes, ","))
	}))
	defer srv.Close()
	for _, c := range []struct{ width, height int }{{30, 8}, {100, 24}} {
		user, program := terminal(t)
		size := &unix.Winsize{Row: uint16(c.height), Col: uint16(c.width)}
		if err := unix.IoctlSetWinsize(int(program.Fd()), unix.TIOCSWINSZ, size); err != nil {
			t.Fatal(err)
		}
		screen := newScreen(user)
		ui.ShowStatus(program, strings.Repeat("loading ", 40))
		ui.ShowStatus(program, "end")
		screen.wait(t, "end")
		if n := strings.Count(screen.String(), "loading "); 8*n >= c.width || n == 0 {
			t.Errorf("a status line of %d columns has %d before a width of %d", 8*40, 8*n, c.width)
		}
		screen.Reset()
		done := make(chan int, 1)
		go func() {
			done <- run(ui.Env{Ctx: t.Context(), Stdin: program, Stdout: program, Stderr: program}, []string{"top", "--server", srv.URL})
		}()
		screen.wait(t, "h explains")
		screen.Reset()
		fmt.Fprint(user, "h")
		legend := map[int]string{8: "epoch      number", 24: "straggler"}[c.height] // 24 rows have room for all of it
		screen.wait(t, legend)
		screen.wait(t, "h explains")
		fmt.Fprint(user, "q")
		if status := <-done; status != 0 {
			t.Errorf("status %d", status)
		}
		for _, frame := range strings.Split(screen.String(), "\x1b[H") {
			if rows := strings.Split(frame, "\r\n"); len(rows) > c.height {
				t.Errorf("%d rows of a terminal of %d", len(rows), c.height)
			}
			for _, row := range strings.Split(frame, "\r\n") {
				if row = strings.NewReplacer("\x1b[K", "", "\x1b[J", "").Replace(row); len(row) > c.width {
					t.Errorf("%d columns of %d: %q", len(row), c.width, row)
				}
			}
		}
	}
}

// screen collects what a program writes to a terminal.
type screen struct {
	strings.Builder
	seen chan string
}

func newScreen(user *os.File) *screen {
	s := &screen{seen: make(chan string, 1000)}
	go func() {
		buf := make([]byte, 4096)
		for {
			n, err := user.Read(buf)
			if err != nil {
				return
			}
			s.seen <- string(buf[:n])
		}
	}()
	return s
}

// wait returns when a text is on the screen.
func (s *screen) wait(t *testing.T, text string) {
	t.Helper()
	for late := time.After(linePatience); !strings.Contains(s.String(), text); {
		select {
		case more := <-s.seen:
			s.WriteString(more)
		case <-late:
			t.Fatalf("%q is missing; the screen shows %q", text, s.String())
		}
	}
}

// rest adds what has arrived since.
func (s *screen) rest() {
	for len(s.seen) > 0 {
		s.WriteString(<-s.seen)
	}
}
