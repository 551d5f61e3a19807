package arithmetic

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/kvcache/kvpolicy"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/engine/tensor/kernel"
)

// recorded holds the result of each case of the self-test when it was recorded, on every machine.
const recorded = "testdata/recorded.txt"

var record = flag.Bool("record", false, "write "+recorded)

// TestRecorded: a changed line means that some answer's bits changed. Raise tensor.Arithmetic and
// record again with -record. The record has exactly the cases of the self-test.
func TestRecorded(t *testing.T) {
	cases, err := selfTest(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf("arithmetic %d\n", tensor.Arithmetic)
	for _, c := range cases {
		text += fmt.Sprintf("%s %x\n", c.name, c.sum[:6])
	}
	if *record {
		if err := os.WriteFile(recorded, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	b, err := os.ReadFile(recorded)
	if err != nil {
		t.Fatal(err)
	}
	was := map[string]string{}
	for line := range strings.Lines(string(b)) {
		i := strings.LastIndexByte(line, ' ')
		was[line[:i]] = line
	}
	moved, all := 0, len(was)
	for line := range strings.Lines(text) {
		name := line[:strings.LastIndexByte(line, ' ')]
		old, ok := was[name]
		delete(was, name)
		switch {
		case !ok:
			t.Errorf("the record has no case %sadd it: go test ./internal/engine/arithmetic -run Recorded -record", line)
		case old != line:
			moved++
			t.Errorf("%swas\n%s", line, old)
		}
	}
	for _, line := range was {
		t.Errorf("the self-test has no case %sif it was removed on purpose, record again with -record", line)
	}
	if moved == all {
		t.Errorf("all %d recorded lines moved", moved)
	}
}

// TestSameOnEverySetOfKernels runs a process per set of kernels, since a process selects its
// kernels at the start.
func TestSameOnEverySetOfKernels(t *testing.T) {
	got, err := Fingerprint()
	if err != nil {
		t.Fatal(err)
	}
	if os.Getenv(kernel.EnvCPU) != "" {
		fmt.Println("fingerprint", got)
		return
	}
	for _, name := range kernel.Names() {
		c := exec.Command(os.Args[0], "-test.run", "^"+t.Name()+"$")
		c.Env = append(os.Environ(), kernel.EnvCPU+"="+name)
		if out, err := c.CombinedOutput(); err != nil || !strings.Contains(string(out), "fingerprint "+got+"\n") {
			t.Errorf("%s: %v: %s, here %s", name, err, out, got)
		}
	}
}

// TestSelfTestIsComplete checks that every policy and type takes part in the self-test.
func TestSelfTestIsComplete(t *testing.T) {
	for _, usage := range kvpolicy.Usage() {
		name, _, _ := strings.Cut(usage, ":")
		if !slices.ContainsFunc(policies, func(p string) bool { return p == name || strings.HasPrefix(p, name+":") }) {
			t.Errorf("policy %s is not in the self-test: add it to policies in fingerprint.go", name)
		}
	}
	for dt := tensor.F32; dt.Valid(); dt++ {
		if !slices.ContainsFunc(served(), func(s typed) bool { return s.weights == dt || s.kv == dt }) {
			t.Errorf("type %v is not in the self-test: add a model with it to served in fingerprint.go", dt)
		}
	}
}
