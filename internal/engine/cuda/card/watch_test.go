package card

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/internal/engine/cuda/emulator"
	"github.com/shoal-llm/shoal/internal/native"
)

// hangs is the emulator's variable with the file that makes waits hang. C keeps the environment of the driver's start.
const hangs = "CUDA_EMULATOR_HANG"

func TestMain(m *testing.M) {
	folder, err := os.MkdirTemp("", "shoal-hangs-")
	if err == nil {
		err = os.Setenv(hangs, filepath.Join(folder, "hang"))
	}
	if err != nil {
		panic(err)
	}
	code := m.Run()
	_ = os.RemoveAll(folder)
	os.Exit(code)
}

// Only looks at one call in progress count.
func TestWatchCounts(t *testing.T) {
	var w watch
	for i, x := range []struct {
		call    uint32
		pending bool
		want    int
	}{{7, true, 0}, {7, true, 1}, {7, true, 2}, {7, false, 0}, {8, true, 0}, {9, true, 0}, {9, true, 1}, {9, false, 0}, {9, false, 0}} {
		if got := w.observe(x.call, x.pending); got != x.want {
			t.Errorf("look %d counts %d, want %d", i, got, x.want)
		}
	}
}

// A call that does not return is reported by its name, and later the card counts as failed.
func TestCardHangs(t *testing.T) {
	t.Setenv("LD_LIBRARY_PATH", emulator.Build(t))
	failed, slow := make(chan error, 1), make(chan string, 9)
	c, err := Open(0, Options{Watch: 20 * time.Millisecond, Fail: func(err error) { failed <- err },
		Slow: func(function string, took time.Duration) { slow <- function + " " + took.String() }})
	if errors.Is(err, native.ErrUnavailable) && os.Getenv("CGO_ENABLED") != "0" {
		t.Skip(err) // linked dynamically: run with CGO_ENABLED=0
	}
	if err != nil {
		t.Fatal(err)
	}
	hang := os.Getenv(hangs)
	if err := os.WriteFile(hang, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	waited := make(chan struct{})
	go func() { c.Wait(); close(waited) }()
	timeout := time.After(time.Minute)
	for got := ""; got != "cuStreamSynchronize 200ms"; { // before it, a busy machine may have been slow in Open
		select {
		case got = <-slow:
		case <-timeout:
			t.Fatalf("the slow call is not reported, the last one is %q", got)
		}
	}
	select {
	case err = <-failed:
	case <-timeout:
		t.Fatal("the card does not fail")
	}
	if !strings.Contains(err.Error(), "cuda:0 (Emulated card): the driver has not returned from cuStreamSynchronize for 2.4s") {
		t.Error(err)
	}
	if err := os.Remove(hang); err != nil {
		t.Fatal(err)
	}
	<-waited
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if len(failed) > 0 {
		t.Errorf("failed again: %v", <-failed)
	}
}
