package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/internal/testlevel"
)

// maxProgram is the limit for the program of a release, in bytes. With a method that is looked up by
// name at run time (reflect.Value.MethodByName), the linker keeps all methods, which are 6 MB.
const maxProgram = 45_200_000

// The archive of this platform works by itself: it is built and unpacked in an empty folder, and
// its demo answers with the model next to it.
func TestArchiveWorksByItself(t *testing.T) {
	testlevel.NeedLong(t)
	if testing.Short() {
		t.Skip("compiles the program as it is released")
	}
	if runtime.GOOS == "windows" {
		t.Skip("its archive is a zip")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 8*time.Minute)
	defer cancel()
	t.Chdir("../..")
	out, platform := t.TempDir(), runtime.GOOS+"/"+runtime.GOARCH
	src, err := read(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := release(ctx, out, []string{platform}); err != nil {
		t.Fatal(err)
	}
	name := "shoal-" + src.version + "-" + runtime.GOOS + "-" + runtime.GOARCH
	sums, err := os.ReadFile(filepath.Join(out, "SHA256SUMS"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range []string{name + ".tar.gz", name + ".cdx.json"} {
		if sum, _, err := checksum(filepath.Join(out, f)); err != nil || !strings.Contains(string(sums), sum+"  "+f+"\n") {
			t.Errorf("SHA256SUMS does not hold %s %s (%v): %s", sum, f, err, sums)
		}
	}
	checkBill(t, filepath.Join(out, name+".cdx.json"))
	empty := t.TempDir()
	unpack(t, filepath.Join(out, name+".tar.gz"), empty)
	if st, err := os.Stat(filepath.Join(empty, name, "shoal")); err != nil {
		t.Error(err)
	} else if st.Size() > maxProgram {
		t.Errorf("the program has %d bytes, more than %d: see `go tool nm -size -sort size`, and whether a new module looks up methods by name", st.Size(), maxProgram)
	}
	shoal := func(args ...string) string {
		t.Helper()
		c := exec.CommandContext(ctx, filepath.Join(empty, name, "shoal"), args...)
		c.Dir, c.Env = empty, []string{"HOME=" + empty}
		text, err := c.CombinedOutput()
		if err != nil {
			t.Fatalf("shoal %v: %v\n%s", args, err, text)
		}
		return string(text)
	}
	if got := shoal("--version"); !strings.HasPrefix(got, strings.TrimSpace("shoal "+src.version+" "+src.commit)+" go") {
		t.Errorf("--version prints %q; it was built from %s %s", got, src.version, src.commit)
	}
	if got := shoal("demo", "--nodes", "2", "--tokens", "8", "--prompt", "What is a slice?"); !strings.Contains(got, "2 processes up") ||
		!strings.Contains(got, "tokens/s") {
		t.Errorf("the demo prints %s", got)
	}
	// Without its model it fails, so it used nothing else of this machine.
	if err := os.RemoveAll(filepath.Join(empty, name, "models")); err != nil {
		t.Fatal(err)
	}
	c := exec.CommandContext(ctx, filepath.Join(empty, name, "shoal"), "demo")
	c.Dir = empty
	if text, err := c.CombinedOutput(); err == nil || !strings.Contains(string(text), "models/fry was not found") {
		t.Errorf("a demo without the bundled model: %v\n%s", err, text)
	}
}

// `go install` from a substitute of the module proxy, in an empty folder with an empty module
// cache: the program answers with the bundled model from that cache.
func TestGoInstall(t *testing.T) {
	testlevel.NeedFull(t)
	ctx, cancel := context.WithTimeout(t.Context(), 9*time.Minute)
	defer cancel()
	proxy, empty := t.TempDir(), t.TempDir()
	do := func(dir string, env []string, name string, args ...string) string {
		t.Helper()
		c := exec.CommandContext(ctx, name, args...)
		c.Dir, c.Env = dir, append(os.Environ(), env...)
		out, err := c.CombinedOutput()
		if err != nil {
			t.Fatalf("%s %v: %v\n%s", name, args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	module, version, _ := strings.Cut(do("", nil, "bash", "../proxy", proxy), " ")
	modules := do("", nil, "go", "env", "GOMODCACHE") // its downloads replace the real proxy
	do(empty, []string{"GOBIN=" + empty, "GOMODCACHE=" + filepath.Join(empty, "modules"), "GOSUMDB=off", "GOFLAGS=-modcacherw",
		"GOPROXY=file://" + proxy + ",file://" + filepath.Join(modules, "cache", "download")}, "go", "install", module+"/cmd/shoal@"+version)
	program := filepath.Join(empty, "shoal")
	if got := do(empty, nil, program, "--version"); !strings.HasPrefix(got, "shoal "+version+" ") {
		t.Errorf("--version prints %q", got)
	}
	if got := do(empty, nil, program, "demo", "--nodes", "2", "--tokens", "8", "--prompt",
		"What is a slice?"); !strings.Contains(got, "tokens/s") {
		t.Errorf("the demo prints %s", got)
	}
}

func checkBill(t *testing.T, name string) {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	var bom struct {
		Components []struct {
			Name, Version string
			Hashes        []struct{ Content string }
		}
	}
	if err := json.Unmarshal(text, &bom); err != nil {
		t.Fatal(err)
	}
	for _, c := range bom.Components {
		if c.Name == "github.com/nats-io/nats-server/v2" {
			if len(c.Hashes) != 1 || len(c.Hashes[0].Content) != 64 || c.Version == "" {
				t.Errorf("the bill of materials has for the NATS server: %+v", c)
			}
			return
		}
	}
	t.Errorf("the bill of materials has %d components, and no NATS server", len(bom.Components))
}

func unpack(t *testing.T, name, into string) {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if err == io.EOF {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		to := filepath.Join(into, filepath.FromSlash(h.Name))
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(r)
		if err == nil {
			err = os.WriteFile(to, data, h.FileInfo().Mode())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// The same members give the same bytes in both formats, and unpack to the originals.
func TestArchivesAreReproducible(t *testing.T) {
	members := []member{{"shoal", 0o755, []byte("program")}, {"models/fry/config.json", 0o644, []byte("{}")}}
	made := time.Unix(1_700_000_000, 0)
	var tars, zips [2]bytes.Buffer
	for i, in := range []time.Time{made, made.In(time.FixedZone("elsewhere", 3600))} {
		if err := tarball(&tars[i], "shoal-v1", in, members); err != nil {
			t.Fatal(err)
		}
		if err := zipped(&zips[i], "shoal-v1", in, members); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(tars[0].Bytes(), tars[1].Bytes()) || !bytes.Equal(zips[0].Bytes(), zips[1].Bytes()) {
		t.Error("an archive depends on where it was written")
	}
	z, err := zip.NewReader(bytes.NewReader(zips[0].Bytes()), int64(zips[0].Len()))
	if err != nil {
		t.Fatal(err)
	}
	for i, m := range members {
		if text, err := fs.ReadFile(z, "shoal-v1/"+m.name); err != nil || !bytes.Equal(text, m.data) || z.File[i].Mode() != m.mode {
			t.Errorf("%s comes out of the zip as %q, %v (%v)", m.name, text, z.File[i].Mode(), err)
		}
	}
}
