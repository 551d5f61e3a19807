package cuda_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/cuda"
	"github.com/shoal-llm/shoal/internal/engine/cuda/emulator"
	"github.com/shoal-llm/shoal/internal/engine/cuda/kernels"
	"github.com/shoal-llm/shoal/internal/native"
)

// The whole binding, with the emulated driver. A process loads one driver, so this is one test.
func TestDriver(t *testing.T) {
	t.Setenv("LD_LIBRARY_PATH", emulator.Build(t))
	t.Setenv("CUDA_EMULATOR_MEMORY", "8000000")
	driver, err := cuda.Open()
	if errors.Is(err, native.ErrUnavailable) {
		t.Skip(err) // under the race detector
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(err)
	devices, err := driver.Devices()
	must(err)
	if len(devices) != 1 || devices[0].Name != "Emulated card" ||
		devices[0].UUID != "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f" || devices[0].Major != 8 {
		t.Fatalf("%+v", devices[0])
	}
	c, err := devices[0].Use()
	must(err)
	stream, err := c.Stream()
	must(err)
	module, err := c.Load(kernels.PTX())
	must(err)
	host, err := c.Pin(8192)
	must(err)

	// Memory. The stream has taken some of it.
	before, total, err := c.MemoryInfo()
	if err != nil || total != 8000000 || before >= total {
		t.Errorf("%d of %d bytes free, %v", before, total, err)
	}
	p, err := c.Alloc(4096)
	must(err)
	if free, _, err := c.MemoryInfo(); err != nil || free != before-4096 {
		t.Errorf("%d bytes free, want %d, %v", free, before-4096, err)
	}
	var failure *cuda.Error
	if _, err := c.Alloc(before); !errors.As(err, &failure) || failure.Code != cuda.CodeOutOfMemory ||
		!strings.Contains(err.Error(), "cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY (2)") {
		t.Errorf("too large an allocation: %v", err)
	}
	if _, err := c.Alloc(-1); err == nil {
		t.Error("an allocation of -1 bytes succeeded")
	}
	if err := c.Free(p.Add(256)); err == nil {
		t.Error("an address within an allocation was freed")
	}

	// Copies, and a graph of them.
	from, to := host.Bytes()[:4096], host.Bytes()[4096:]
	for i := range from {
		from[i] = byte(i * 7)
	}
	graph, err := stream.Record(func() error {
		return errors.Join(stream.Upload(p, from), stream.Copy(p.Add(2048), p, 2048), stream.Fill(p, 0x01020304, 1), stream.Download(to, p))
	})
	must(err)
	clear(to)
	must(stream.Wait())
	if !bytes.Equal(to, make([]byte, 4096)) {
		t.Error("recording did the work")
	}
	for range 2 {
		clear(to)
		must(graph.Launch(stream))
		must(stream.Wait())
		if want := append(append([]byte{4, 3, 2, 1}, from[4:2048]...), from[:2048]...); !bytes.Equal(to, want) {
			t.Error("the graph copied something else")
		}
	}
	must(graph.Close())
	if done, err := stream.Done(); !done || err != nil {
		t.Errorf("done %v, %v", done, err)
	}

	// Kernels.
	if _, err := module.Kernel("nothing"); err == nil || !strings.Contains(err.Error(), "kernel nothing") {
		t.Errorf("a kernel that does not exist: %v", err)
	}
	exp, err := module.Kernel("function_of_bits")
	must(err)
	if err := exp.Launch(stream, cuda.Grid{X: 1, Threads: 32}, p, "text"); err == nil ||
		!strings.Contains(err.Error(), "argument 1 is a string") {
		t.Errorf("an argument of a wrong type: %v", err)
	}
	if err := exp.Launch(stream, cuda.Grid{X: 1, Threads: 2048}, uint32(0), uint32(0), uint32(1), p, uint32(1)); err == nil {
		t.Error("a block of 2048 threads was launched")
	}
	must(exp.Launch(stream, cuda.Grid{X: 1, Threads: 32}, uint32(0), uint32(0), uint32(1), host.Device(), uint32(1)))
	must(stream.Wait())
	if b := host.Bytes(); b[3] != 0x3f || b[2] != 0x80 { // 1
		t.Errorf("exp(0) has the bytes %x", b[:4])
	}

	// Dynamic shared memory: a multiprocessor has 228 KB of it, and a block may have 227.
	for _, allow := range []struct {
		bytes, blocks int
		fits          bool
	}{{64 << 10, 2, true}, {64 << 10, 4, false}, {228 << 10, 1, false}, {48 << 10, 4, true}} {
		if fits, err := exp.AllowShared(allow.bytes, allow.blocks); err != nil || fits != allow.fits {
			t.Errorf("%d blocks of %d bytes of shared memory fit: %v, %v", allow.blocks, allow.bytes, fits, err)
		}
	}
	if err := exp.Launch(stream, cuda.Grid{X: 1, Threads: 32, Shared: 49 << 10}, uint32(0), uint32(0), uint32(1), p, uint32(1)); err == nil {
		t.Error("a block of more shared memory than was allowed was launched")
	}

	must(errors.Join(c.Free(p), host.Close(), module.Close(), stream.Close(), c.Close()))
}
