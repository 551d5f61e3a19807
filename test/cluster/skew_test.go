package cluster_test

import (
	"encoding/binary"
	"encoding/json"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// skewEnv names the file with the seconds by which the wall clock of a process is
// wrong, which a test changes while the process runs.
const skewEnv = "SHOAL_TEST_SKEW"

// clocks are the wall clocks of processes that run a skewed binary.
type clocks struct {
	t   testing.TB
	dir string
}

func (c clocks) env(name string) []string {
	if _, err := os.Stat(filepath.Join(c.dir, name)); err != nil {
		c.set(map[string]time.Duration{name: 0})
	}
	return []string{skewEnv + "=" + filepath.Join(c.dir, name)}
}

// set moves clocks, by process, to so much ahead of the machine's.
func (c clocks) set(ahead map[string]time.Duration) {
	c.t.Helper()
	for name, d := range ahead {
		f, err := os.OpenFile(filepath.Join(c.dir, name), os.O_CREATE|os.O_WRONLY, 0o600)
		if err == nil {
			_, err = f.WriteAt(binary.NativeEndian.AppendUint64(nil, uint64(d/time.Second)), 0)
			f.Close()
		}
		if err != nil {
			c.t.Fatal(err)
		}
	}
}

// skewed is cmd/shoal with wall clocks that a test moves: `go build -overlay` puts
// changed files in the place of those that read the clock, so that the product has
// no hook for this. By default these are the files of this module, each time.Now
// of which is another one, as are Since and Until; in full it is the standard
// library's time.Now, which those of other modules and of the library itself call
// as well (a cold build of everything: minutes). Monotonic readings stay, as they do
// when a machine's clock is set.
func (b *binaries) skewed(t testing.TB) string {
	t.Helper()
	overlay := map[string]string{}
	dir := t.TempDir()
	put := func(path, text string) {
		file := filepath.Join(dir, regexp.MustCompile(`[^a-z]+`).ReplaceAllString(path, "-")+".go")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		overlay[path] = file
	}
	if full() {
		skewLibrary(t, put)
	} else {
		skewModule(t, put)
	}
	text, err := json.Marshal(map[string]any{"Replace": overlay})
	if err != nil {
		t.Fatal(err)
	}
	list := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(list, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return b.build(t, "shoal-skewed", "-overlay", list)
}

// skewFile maps the file that skewEnv names. The package time may import no more.
const skewFile = `
import (
	"syscall"
	"unsafe"
)

var skew = func() *int64 {
	name, ok := syscall.Getenv("` + skewEnv + `")
	if !ok {
		return new(int64)
	}
	fd, err := syscall.Open(name, syscall.O_RDONLY, 0)
	if err != nil {
		panic(name + ": " + err.Error())
	}
	b, err := syscall.Mmap(fd, 0, 8, syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		panic(name + ": " + err.Error())
	}
	return (*int64)(unsafe.Pointer(&b[0]))
}()
`

func skewLibrary(t testing.TB, put func(path, text string)) {
	t.Helper()
	out, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(strings.TrimSpace(string(out)), "src", "time")
	b, err := os.ReadFile(filepath.Join(dir, "time.go"))
	if err != nil {
		t.Fatal(err)
	}
	const read = "sec, nsec, mono := runtimeNow()\n\tif mono == 0 {"
	text := strings.Replace(string(b), read, strings.Replace(read, "\n", "\n\tif skew != nil {\n\t\tsec += *skew\n\t}\n", 1), 1)
	if text == string(b) {
		t.Fatal("time.Now is written in another way in this version of Go")
	}
	put(filepath.Join(dir, "time.go"), text)
	put(filepath.Join(dir, "skew.go"), "package time\n"+skewFile)
}

func skewModule(t testing.TB, put func(path, text string)) {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	clock := regexp.MustCompile(`\btime\.(Now|Since|Until)\b`)
	clause := regexp.MustCompile(`(?m)^package [a-z_0-9]+$`)
	seen := map[string]bool{}
	err = filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		name := e.Name()
		switch {
		case err != nil:
			return err
		case e.IsDir() && (name == "testdata" || name == "test" || name == "bench" || name == "eval" || strings.HasPrefix(name, ".") && path != root):
			return filepath.SkipDir
		case e.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go"):
			return nil
		}
		b, err := os.ReadFile(path)
		if err != nil || !clock.Match(b) {
			return err
		}
		text := clock.ReplaceAllString(string(b), "skew.$1")
		at := clause.FindStringIndex(text)
		text = text[:at[1]] + "\n\nimport \"shoal/internal/skew\"\n" + text[at[1]:] + "\nvar _ time.Duration\n"
		put(path, text)
		seen[filepath.Base(filepath.Dir(path))] = true
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if !seen["jobs"] || !seen["cluster"] || !seen["api"] {
		t.Fatalf("clocks are read in %v", slices.Collect(maps.Keys(seen)))
	}
	put(filepath.Join(root, "internal", "skew", "skew.go"), "package skew\n"+strings.Replace(skewFile, "import (\n", "import (\n\t\"time\"\n", 1)+`
// Now moves the wall clock's seconds: 33 bits above 30 of nanoseconds, beside the
// monotonic reading, which the bit above them tells of.
func Now() time.Time {
	t := time.Now()
	wall := (*uint64)(unsafe.Pointer(&t))
	*wall = 1<<63 | *wall + uint64(*skew)<<30
	return t
}

func Since(t time.Time) time.Duration { return Now().Sub(t) }
func Until(t time.Time) time.Duration { return t.Sub(Now()) }
`)
}
