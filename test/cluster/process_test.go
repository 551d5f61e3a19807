package cluster_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/internal/security"
	"github.com/shoal-llm/shoal/internal/testutil"
)

// process is one run of the binary. Its output goes to files in the test's folder, whose ends are
// shown if the test fails.
type process struct {
	name string
	cmd  *exec.Cmd
	out  string // path of standard output
	err  string // path of standard error
	done chan struct{}

	once sync.Once
	code error // result of Wait, set before done is closed
}

// clusterKey is the key of nodes and coordinators that tests start individually.
var clusterKey = security.NewKey()

// spawn starts the binary. The process is killed at the end of the test at the latest. env is added
// to an environment without SHOAL_ variables, except for the cluster key of a process that is not a
// whole cluster by itself.
func spawn(t testing.TB, bin, name string, env []string, args ...string) *process {
	t.Helper()
	return spawnIn(t, nil, bin, name, env, args...)
}

// spawnIn is spawn for a process connected to a wire.
func spawnIn(t testing.TB, at *port, bin, name string, env []string, args ...string) *process {
	t.Helper()
	dir := t.TempDir()
	p := &process{name: name, out: filepath.Join(dir, name+".out"), err: filepath.Join(dir, name+".err"), done: make(chan struct{})}
	p.cmd = exec.Command(bin, args...)
	p.cmd.Env = cleanEnv()
	if args[0] != "up" && !slices.Contains(args, "--insecure") && !slices.Contains(args, "--cluster-key") {
		p.cmd.Env = append(p.cmd.Env, security.EnvKey+"="+clusterKey.Text())
	}
	p.cmd.Env = append(p.cmd.Env, env...)
	// If the test binary is killed, this process and its nodes end too.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	for _, f := range []struct {
		path string
		to   func(*os.File)
	}{{p.out, func(f *os.File) { p.cmd.Stdout = f }}, {p.err, func(f *os.File) { p.cmd.Stderr = f }}} {
		file, err := os.Create(f.path)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close() // the process has its own copy
		f.to(file)
	}
	err := error(nil)
	if start := func() { err = p.cmd.Start() }; at != nil {
		at.in(start)
	} else {
		onLastingThread(start)
	}
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	go func() {
		p.code = p.cmd.Wait()
		close(p.done)
	}()
	p.register(t)
	t.Cleanup(func() {
		dumpFailed(t)
		p.kill(t)
		if t.Failed() {
			t.Logf("--- %s, end of standard output:\n%s--- end of standard error:\n%s", name, tail(p.out), tail(p.err))
		}
		checkLog(t, name, p.err)
	})
	return p
}

// lasting runs functions on a thread that never ends. Pdeathsig kills a process when the thread
// that started it ends, not when this whole process does. The thread of a test may later be used by
// a wire's port and end with the wire.
var lasting = sync.OnceValue(func() chan<- func() {
	calls := make(chan func())
	go func() {
		runtime.LockOSThread()
		for f := range calls {
			f()
		}
	}()
	return calls
})

func onLastingThread(f func()) {
	done := make(chan struct{})
	lasting() <- func() { defer close(done); f() }
	<-done
}

// cleanEnv returns the environment without Shoal's settings, except SHOAL_SPECULATE: every test may
// run with drafts. Drafts come from a stream's own text, so faults occur in the middle of it.
func cleanEnv() []string {
	var out []string
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "SHOAL_") {
			out = append(out, v)
		}
	}
	if mode := drafting(); mode != "" {
		out = append(out, "SHOAL_SPECULATE="+mode, "SHOAL_SPECULATE_RECENT=off")
	}
	// `up` keeps jobs in the state directory by default.
	return append(out, "GOTRACEBACK=all", "GORACE=halt_on_error=1", "XDG_CACHE_HOME="+filepath.Join(built.dir, "cache"),
		"XDG_STATE_HOME="+filepath.Join(built.dir, "state"))
}

// trouble matches output that no process may ever write.
var trouble = regexp.MustCompile(`(?m)^(WARNING: DATA RACE|panic: |fatal error: |unexpected fault address).*`)

func checkLog(t testing.TB, name, path string) {
	b, err := os.ReadFile(path)
	if err != nil {
		return
	}
	if at := trouble.FindIndex(b); at != nil {
		t.Errorf("%s wrote:\n%s", name, b[at[0]:min(len(b), at[0]+6000)])
	}
}

const tailBytes = 6000

func tail(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return err.Error() + "\n"
	}
	b, dump, dumped := bytes.Cut(b, []byte(quit))
	most := tailBytes
	if full() { // in a long run the cause may be minutes earlier
		most *= 64
	}
	if len(b) > most {
		b = append([]byte("...\n"), b[len(b)-most:]...)
	}
	if len(b) > 0 && !bytes.HasSuffix(b, []byte("\n")) {
		b = append(b, '\n')
	}
	if dumped {
		return string(b) + quit + goroutines(string(dump))
	}
	return string(b)
}

// line waits until a line of the file matches and returns its submatches.
func (p *process) line(t testing.TB, path string, re *regexp.Regexp, limit time.Duration) []string {
	t.Helper()
	var found []string
	testutil.Eventually(t, limit, fmt.Sprintf("%s prints %v", p.name, re), func() (bool, string) {
		ended := false
		select {
		case <-p.done:
			ended = true // read its last output once more
		default:
		}
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if found = re.FindStringSubmatch(string(b)); found == nil && ended {
			t.Fatalf("%s ended (%v) before it printed %v", p.name, p.code, re)
		}
		return found != nil, "not yet"
	})
	return found
}

// end waits for the process and returns its exit code (-1: killed by a signal).
func (p *process) end(t testing.TB, limit time.Duration) int {
	t.Helper()
	select {
	case <-p.done:
		return p.cmd.ProcessState.ExitCode()
	case <-time.After(limit):
		_ = p.cmd.Process.Signal(syscall.SIGQUIT) // writes its goroutines to the log
		select {
		case <-p.done:
		case <-time.After(patience / 2):
		}
		t.Fatalf("%s did not end in %v", p.name, limit)
		return -1
	}
}

func (p *process) kill(t testing.TB) {
	p.once.Do(func() {
		select {
		case <-p.done:
			return
		default:
		}
		_ = p.cmd.Process.Kill()
		select {
		case <-p.done:
		case <-time.After(patience):
			t.Errorf("%s (pid %d) survives SIGKILL", p.name, p.cmd.Process.Pid)
		}
	})
}

// command runs the binary to its end and returns its output.
func command(t testing.TB, limit time.Duration, env []string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	c := exec.CommandContext(ctx, built.shoal(t, ""), args...)
	c.Env = append(cleanEnv(), env...)
	c.WaitDelay = 5 * time.Second
	var o, e bytes.Buffer
	c.Stdout, c.Stderr = &o, &e
	err := c.Run()
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		t.Fatalf("shoal %s did not end in %v\n%s%s", strings.Join(args, " "), limit, o.String(), e.String())
	case err != nil && !errors.As(err, &exit):
		t.Fatal(fmt.Errorf("shoal %s: %w", strings.Join(args, " "), err))
	}
	return o.String(), e.String(), c.ProcessState.ExitCode()
}
