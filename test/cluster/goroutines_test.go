package cluster_test

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// spawned has the processes of the tests that run.
var spawned struct {
	mu sync.Mutex
	of map[testing.TB][]*process
}

func (p *process) register(t testing.TB) {
	spawned.mu.Lock()
	defer spawned.mu.Unlock()
	if spawned.of == nil {
		spawned.of = map[testing.TB][]*process{}
	}
	spawned.of[t] = append(spawned.of[t], p)
}

// dumpFailed reports the processes of a failed test, and ends those that are running: each writes its goroutines to
// its standard error. The report comes before the dumps, of which CI may print only a part.
func dumpFailed(t testing.TB) {
	spawned.mu.Lock()
	all := spawned.of[t]
	delete(spawned.of, t)
	spawned.mu.Unlock()
	if !t.Failed() {
		return
	}
	for _, p := range all {
		state := "runs"
		select {
		case <-p.done:
			state = fmt.Sprintf("ended (%v)", p.cmd.ProcessState)
		default:
		}
		t.Logf("%s, pid %d, %s; its last lines:\n%s", p.name, p.cmd.Process.Pid, state, lastLines(p.err, 3))
	}
	for _, p := range all {
		_ = p.cmd.Process.Signal(syscall.SIGQUIT)
	}
	limit := time.After(5 * time.Second)
	for _, p := range all {
		select {
		case <-p.done:
		case <-limit:
			return
		}
	}
}

// lastLines returns the last n lines of a file.
func lastLines(path string, n int) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// quit is the line before the goroutines in the output of a process that SIGQUIT has ended.
const quit = "SIGQUIT: quit\n"

var (
	goroutineHead  = regexp.MustCompile(`^goroutine \d+ .*\[(.*)\]:$`)
	ofRuntime      = regexp.MustCompile(`^(created by )?runtime\.`)
	goroutinePlace = regexp.MustCompile(`^\t(.*\.(?:go|s):\d+)`)
)

// goroutines lists the goroutines of a dump, equal ones once with their number. The rarest come first. Frames of the
// runtime are left out, and so are its own goroutines.
func goroutines(dump string) string {
	const frames, most = 12, 24 << 10
	type group struct {
		n    int
		head string // state of the first one, with its time
	}
	groups, order := map[string]*group{}, []string{}
	for part := range strings.SplitSeq(dump, "\n\n") {
		_, part, found := strings.Cut("\n"+part, "\ngoroutine ")
		lines := strings.Split("goroutine "+part, "\n")
		head := goroutineHead.FindStringSubmatch(lines[0])
		if !found || head == nil {
			continue
		}
		var stack strings.Builder
		n, function := 0, ""
		for _, line := range lines[1:] {
			if at := goroutinePlace.FindStringSubmatch(line); at == nil {
				if i := strings.LastIndexByte(line, '('); i >= 0 {
					line = line[:i]
				}
				function = line
			} else if !ofRuntime.MatchString(function) && n < frames {
				n++
				fmt.Fprintf(&stack, "    %s %s\n", function, filepath.Base(at[1]))
			}
		}
		if n == 0 {
			continue
		}
		state, _, _ := strings.Cut(head[1], ",")
		key := state + "\n" + stack.String()
		if groups[key] == nil {
			groups[key] = &group{head: head[1]}
			order = append(order, key)
		}
		groups[key].n++
	}
	slices.SortStableFunc(order, func(a, b string) int { return cmp.Compare(groups[a].n, groups[b].n) })
	var out strings.Builder
	for _, key := range order {
		_, stack, _ := strings.Cut(key, "\n")
		fmt.Fprintf(&out, "%d goroutines [%s]:\n%s", groups[key].n, groups[key].head, stack)
	}
	text := out.String()
	if len(text) > most {
		text = text[:most] + "...\n"
	}
	return text
}

func waitsForTest(c chan struct{}) { <-c }

// TestGoroutines: equal goroutines are listed once, in the format of this Go version.
func TestGoroutines(t *testing.T) {
	c := make(chan struct{})
	defer close(c)
	for range 3 {
		go waitsForTest(c)
	}
	b := make([]byte, 1<<20)
	var text string
	for range 1000 { // until all three wait
		text = goroutines(string(b[:runtime.Stack(b, true)]))
		if strings.Contains(text, "3 goroutines [chan receive") {
			break
		}
		time.Sleep(time.Millisecond)
	}
	if !regexp.MustCompile(`3 goroutines \[chan receive.*\]:\n    \S+cluster_test\.waitsForTest goroutines_test\.go:\d+\n`).MatchString(text) ||
		strings.Count(text, "waitsForTest") != 1 || !strings.Contains(text, "1 goroutines [running") {
		t.Error(text)
	}
}
