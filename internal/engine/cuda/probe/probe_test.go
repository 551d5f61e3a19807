package probe

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/cuda/emulator"
	"github.com/shoal-llm/shoal/internal/engine/cuda/kernels"
	"github.com/shoal-llm/shoal/internal/native"
)

// The test program is its own child: one process has one driver.
func TestMain(m *testing.M) {
	if text := os.Getenv("SHOAL_PROBE_FULL"); text != "" {
		out := json.NewEncoder(os.Stdout)
		if err := Full(0, text, func(int, string) {}, func(r Result) { _ = out.Encode(r) }); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if os.Getenv("SHOAL_PROBE_TIMES") != "" {
		if err := tinyTimes(json.NewEncoder(os.Stdout)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if os.Getenv("SHOAL_PROBE_TEST") != "" {
		if err := json.NewEncoder(os.Stdout).Encode(run(os.Getenv("SHOAL_PROBE_KERNEL"))); err != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// output runs the test program as a child.
func output(t *testing.T, environment ...string) []byte {
	t.Helper()
	c := exec.Command(os.Args[0])
	c.Env = append(os.Environ(), environment...)
	var stderr strings.Builder
	c.Stderr = &stderr
	out, err := c.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, stderr.String())
	}
	return out
}

func full(t *testing.T, text string, environment ...string) (all []Result) {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(output(t, append(environment, "SHOAL_PROBE_FULL="+text)...)))
	for d.More() {
		var r Result
		if err := d.Decode(&r); err != nil {
			t.Fatal(err)
		}
		all = append(all, r)
	}
	return all
}

func child(t *testing.T, environment ...string) (r Report) {
	t.Helper()
	out := output(t, append(environment, "SHOAL_PROBE_TEST=1")...)
	if err := json.Unmarshal(out, &r); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if strings.Contains(r.Problem, native.ErrUnavailable.Error()) {
		t.Skip(r.Problem)
	}
	return r
}

// The emulated card gives the CPU's bits, in both orders of its lanes. A kernel that computes
// another bit is found, whichever it is, and a card that cannot serve is refused by its reason.
func TestEmulated(t *testing.T) {
	environment := []string{"LD_LIBRARY_PATH=" + emulator.Build(t), "CUDA_EMULATOR_MEMORY=64000000"}
	examine := func(t *testing.T, more ...string) Device {
		r := child(t, append(environment, more...)...)
		if len(r.Devices) != 1 || r.Problem != "" {
			t.Fatalf("%+v", r)
		}
		return r.Devices[0]
	}
	for _, order := range []string{"CUDA_EMULATOR_CAPABILITY=80", "CUDA_EMULATOR_REVERSE=1"} {
		if d := examine(t, order); !d.Bits || d.Problem != "" || d.Read <= 0 || d.Upload <= 0 || d.Download <= 0 || d.Launch <= 0 {
			t.Errorf("%s: %+v", order, d)
		}
	}
	for _, kernel := range kernels.Names {
		if kernel == "read_all" { // computes nothing
			continue
		}
		if d := examine(t, "CUDA_EMULATOR_FAULT="+kernel, "SHOAL_PROBE_KERNEL="+kernel); d.Bits ||
			!strings.Contains(d.Problem, "differ from the CPU's") {
			t.Errorf("with a wrong bit of %s: %+v", kernel, d)
		}
	}
	// A card with less shared memory uses other kernels.
	less := []string{"CUDA_EMULATOR_SHARED=102400", "SHOAL_PROBE_KERNEL=q8_product_tiled_shared"}
	for kernel, right := range map[string]bool{"q8_product_tiled_shared": true, "q8_product_tiled": false} {
		if d := examine(t, append(less, "CUDA_EMULATOR_FAULT="+kernel)...); d.Bits != right {
			t.Errorf("less shared memory, with a wrong bit of %s: %+v", kernel, d)
		}
	}
	// A full examination continues after a kernel that computes another bit.
	results := full(t, "bits: product of q8_0 weights with", append(environment, "CUDA_EMULATOR_FAULT=q8_product_8")...)
	var failed []string
	for _, r := range results {
		if r.Problem != "" {
			failed = append(failed, r.Name)
		}
	}
	if len(results) != 5 || !slices.Equal(failed, []string{"bits: product of q8_0 weights with up to 8 tokens"}) {
		t.Errorf("%+v", results)
	}
	if speeds := full(t, "speed: best of", environment...); len(speeds) != 1 || speeds[0].Problem != "" ||
		speeds[0].Speed.Time <= 0 || speeds[0].Speed.Bytes != 4*vocab {
		t.Errorf("%+v", speeds)
	}
	if d := examine(t, "CUDA_EMULATOR_CAPABILITY=75"); d.Bits || !strings.Contains(d.Problem, "compute capability 7.5 is too old") {
		t.Errorf("an old card: %+v", d)
	}
	if d := examine(t, "CUDA_EMULATOR_MEMORY=4096"); d.Bits || !strings.Contains(d.Problem, "CUDA_ERROR_OUT_OF_MEMORY") {
		t.Errorf("a card without memory: %+v", d)
	}
}

func TestNoDriver(t *testing.T) {
	if _, err := os.Stat("/dev/nvidiactl"); err == nil {
		t.Skip("this machine has a card")
	}
	if r := child(t, "LD_LIBRARY_PATH="); len(r.Devices) != 0 || !strings.Contains(r.Problem, "libcuda.so.1: cannot open shared object file") {
		t.Errorf("%+v", r)
	}
}
