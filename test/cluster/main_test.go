package cluster_test

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/internal/testlevel"
)

// binaries are built at most once a test binary each, into a folder of their
// own, so that every process that runs one of them is known to be ours.
type binaries struct {
	dir  string
	mu   sync.Mutex
	made map[string]string // by name
}

var built binaries

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	dir, err := os.MkdirTemp("", "shoal-e2e-")
	if err == nil {
		dir, err = filepath.EvalSymlinks(dir) // as /proc/PID/exe spells it
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	built = binaries{dir: dir, made: map[string]string{}}
	waitTogether()
	code := m.Run()
	for pid, name := range built.running() {
		fmt.Fprintf(os.Stderr, "e2e: process %d (%s) outlived its test\n", pid, name)
		_ = syscall.Kill(pid, syscall.SIGKILL)
		code = 1
	}
	return code
}

// shoal is the path of cmd/shoal, built with the given build tags.
func (b *binaries) shoal(t testing.TB, tags string) string {
	t.Helper()
	if tags == "" {
		return b.build(t, "shoal")
	}
	return b.build(t, "shoal"+tags, "-tags", tags)
}

// build makes cmd/shoal with more arguments of `go build`, under a name of its own.
func (b *binaries) build(t testing.TB, name string, more ...string) string {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if path := b.made[name]; path != "" {
		return path
	}
	path := filepath.Join(b.dir, name)
	args := append([]string{"build", "-buildvcs=false", "-o", path}, more...)
	if raceEnabled { // what the processes do is then watched as well
		args = append(args, "-race")
	}
	began := time.Now()
	if out, err := exec.Command("go", append(args, "github.com/shoal-llm/shoal/cmd/shoal")...).CombinedOutput(); err != nil {
		t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	t.Logf("built %s in %.1f s", name, time.Since(began).Seconds())
	b.made[name] = path
	return path
}

// running are the live processes (not zombies) of our binaries, with their
// command lines.
func (b *binaries) running() map[int]string {
	found := map[int]string{}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil // no /proc: the cluster's own clean-up must do
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		exe, err := os.Readlink(filepath.Join("/proc", e.Name(), "exe"))
		if err != nil || !strings.HasPrefix(exe, b.dir+string(filepath.Separator)) {
			continue
		}
		line, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		found[pid] = strings.ReplaceAll(strings.TrimRight(string(line), "\x00"), "\x00", " ")
	}
	return found
}

// beside lets a test that mostly waits run beside others of its kind; what is measured on
// a machine of its own (full) runs alone.
func beside(t *testing.T) {
	if !full() {
		t.Parallel()
	}
}

// waitTogether lets three of those run at once on two processors, if nobody said how many.
func waitTogether() {
	const name = "test.parallel"
	flag.Parse()
	said := false
	flag.Visit(func(f *flag.Flag) { said = said || f.Name == name })
	if !said {
		_ = flag.Set(name, strconv.Itoa(max(3, runtime.GOMAXPROCS(0)))) // a number it takes
	}
}

// full tells that the long sweeps were asked for.
func full() bool { return testlevel.Full() }

// drafting is how every process drafts that does not say itself; "": as it does by default,
// and streams that meet faults have none.
func drafting() string { return os.Getenv("SHOAL_SPECULATE") }
