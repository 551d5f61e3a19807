// Package emulator builds a CUDA driver without a card, for tests: the driver functions that
// package cuda calls, in C++, and the kernels compiled for the CPU. Tests need g++ for it.
package emulator

import (
	"embed"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/cuda"
	"github.com/shoal-llm/shoal/internal/engine/cuda/kernels"
	"github.com/shoal-llm/shoal/internal/native"
)

//go:embed source
var sources embed.FS

// Build compiles the emulated driver, and returns its folder for LD_LIBRARY_PATH. It skips the test if
// the program cannot load libraries, or if there is no g++; with CI=true in the environment the latter
// fails.
func Build(t testing.TB) string {
	t.Helper()
	if err := native.Check(); err != nil && os.Getenv("CGO_ENABLED") != "0" {
		t.Skip(err) // compiling takes long
	}
	compiler, err := exec.LookPath("g++")
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal("there is no g++ for the emulated driver: apt-get install g++")
		}
		t.Skip("there is no g++ for the emulated driver: apt-get install g++")
	}
	folder := t.TempDir()
	write := func(name string, content []byte) {
		if err := os.WriteFile(filepath.Join(folder, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range append(kernels.SourceNames(), kernels.Main) {
		write(name, []byte(kernels.Source(name)))
	}
	mine, err := fs.Glob(sources, "source/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range mine {
		content, err := sources.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		write(path.Base(name), content)
	}
	build := exec.Command(compiler, "-std=c++17", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-ffp-contract=off", "-mfma", "-mf16c",
		"-Wall", "-Wno-unknown-pragmas", "driver.cc", "lanes.cc", "-o", cuda.Library, "-lpthread")
	build.Dir = folder
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("g++: %v\n%s", err, out)
	}
	return folder
}
