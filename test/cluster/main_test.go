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

// binaries are built at most once per test binary, into a separate folder, so that every process
// running one is known to be ours.
type binaries struct {
	dir  string
	mu   sync.Mutex
	made map[string]string // paths by name
}

var built binaries

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	dir, err := os.MkdirTemp("", "shoal-e2e-")
	if err == nil {
		dir, err = filepath.EvalSymlinks(dir) // as in /proc/PID/exe
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

// shoal returns the path of cmd/shoal, built with the given build tags.
func (b *binaries) shoal(t testing.TB, tags string) string {
	t.Helper()
	switch tags {
	case "":
		return b.build(t, "shoal")
	case static:
		return b.buildIn(t, []string{"CGO_ENABLED=0"}, "shoal-static")
	}
	return b.build(t, "shoal"+tags, "-tags", tags)
}

// build builds cmd/shoal under a name, with additional arguments of `go build`.
func (b *binaries) build(t testing.TB, name string, more ...string) string {
	t.Helper()
	return b.buildIn(t, nil, name, more...)
}

// buildIn is build with additional variables of the environment.
func (b *binaries) buildIn(t testing.TB, env []string, name string, more ...string) string {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if path := b.made[name]; path != "" {
		return path
	}
	path := filepath.Join(b.dir, name)
	if made := os.Getenv("SHOAL_STATIC_BINARY"); made != "" && name == "shoal-static" { // built before, for machines without Go
		content, err := os.ReadFile(made)
		if err == nil {
			err = os.WriteFile(path, content, 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
		b.made[name] = path
		return path
	}
	args := append([]string{"build", "-buildvcs=false", "-o", path}, more...)
	if raceEnabled && env == nil { // then the processes are checked for races too
		args = append(args, "-race")
	}
	began := time.Now()
	build := exec.Command("go", append(args, "github.com/shoal-llm/shoal/cmd/shoal")...)
	build.Env = append(os.Environ(), env...)
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	t.Logf("built %s in %.1f s", name, time.Since(began).Seconds())
	b.made[name] = path
	return path
}

// running returns the live processes (not zombies) of our binaries, with their command lines.
func (b *binaries) running() map[int]string {
	found := map[int]string{}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil // without /proc, the cluster's own clean-up must suffice
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

// parallel lets a test that mostly waits run in parallel with others. In full mode, which measures
// times on a dedicated machine, tests run alone.
func parallel(t *testing.T) {
	if !full() {
		t.Parallel()
	}
}

// waitTogether raises the default of -test.parallel: three waiting tests on two CPUs.
func waitTogether() {
	const name = "test.parallel"
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == name })
	if !given {
		_ = flag.Set(name, strconv.Itoa(max(3, runtime.GOMAXPROCS(0)))) // a valid number
	}
}

// full reports whether the long sweeps were requested.
func full() bool { return testlevel.Full() }

// drafting is the draft mode of processes that set none. "": the default, except that streams with
// faults have none.
func drafting() string { return os.Getenv("SHOAL_SPECULATE") }
