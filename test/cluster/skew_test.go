package cluster_test

import (
	"encoding/binary"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// skewEnv names the file with the offset in seconds of a process's clock. A test changes it while
// the process runs.
const skewEnv = "SHOAL_TEST_SKEW"

// clocks controls the clocks of processes that run a skewed binary.
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

// set sets the offset of each named process's clock.
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

// skewed builds cmd/shoal with a clock that a test can move. `go build -overlay` replaces time.Now
// of the standard library, for all packages, so the product needs no hook. A cold build takes
// minutes. Monotonic readings are unchanged, as when a machine's clock is set.
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
	skewLibrary(t, put)
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

// skewFile maps the file named by skewEnv. Package time may not import more than this.
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
