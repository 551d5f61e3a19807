// Package emulator builds a CUDA driver without a card, for tests: the driver functions that
// package cuda calls, in C++, and the kernels compiled for the CPU. Tests need g++ for it.
package emulator

import (
	"crypto/sha256"
	"embed"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/cuda"
	"github.com/shoal-llm/shoal/internal/engine/cuda/kernels"
	"github.com/shoal-llm/shoal/internal/native"
)

//go:embed source
var sources embed.FS

// Build is Compile for tests that load the driver themselves. It skips the test if their program
// cannot load libraries.
func Build(t testing.TB) string {
	t.Helper()
	if err := native.Check(); err != nil && os.Getenv("CGO_ENABLED") != "0" {
		t.Skip(err)
	}
	return Compile(t)
}

// Compile compiles the emulated driver, and returns its folder for LD_LIBRARY_PATH. Tests of the same
// sources share one folder below the system's folder for temporary files, because compiling takes long.
// It skips the test if there is no g++; with CI=true in the environment it fails then.
func Compile(t testing.TB) string {
	t.Helper()
	compiler, err := exec.LookPath("g++")
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal("there is no g++ for the emulated driver: apt-get install g++")
		}
		t.Skip("there is no g++ for the emulated driver: apt-get install g++")
	}
	files, hash := sourceFiles(t), sha256.New()
	for _, name := range slices.Sorted(maps.Keys(files)) {
		fmt.Fprintf(hash, "%s %d\n%s", name, len(files[name]), files[name])
	}
	folder := filepath.Join(os.TempDir(), fmt.Sprintf("shoal-emulator-%d-%x", os.Getuid(), hash.Sum(nil)[:8]))
	if _, err := os.Stat(filepath.Join(folder, cuda.Library)); err == nil {
		return folder
	}
	fresh, err := os.MkdirTemp("", "shoal-emulator-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(fresh)
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(fresh, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	build := exec.Command(compiler, "-std=c++17", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-ffp-contract=off", "-mfma", "-mf16c",
		"-Wall", "-Wno-unknown-pragmas", "driver.cc", "lanes.cc", "-o", cuda.Library, "-lpthread")
	build.Dir = fresh
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("g++: %v\n%s", err, out)
	}
	// Another test may have been faster.
	if err := os.Rename(fresh, folder); err != nil {
		if _, missing := os.Stat(filepath.Join(folder, cuda.Library)); missing != nil {
			t.Fatal(err)
		}
	}
	return folder
}

// sourceFiles returns the sources of the driver and of the kernels, by name.
func sourceFiles(t testing.TB) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	for _, name := range append(kernels.SourceNames(), kernels.Main) {
		files[name] = []byte(kernels.Source(name))
	}
	mine, err := fs.Glob(sources, "source/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range mine {
		if files[path.Base(name)], err = sources.ReadFile(name); err != nil {
			t.Fatal(err)
		}
	}
	return files
}
