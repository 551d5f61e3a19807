package arithmetic

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"shoal/kvcache"
	"shoal/model"
	"shoal/tensor"
)

// recorded is what Fingerprint gave when this was written, on every machine. If it moves:
// raise tensor.Arithmetic where a bit of any answer moved, and record it anew; where only
// more is looked at, record it anew.
const recorded = "2-b2e83253f75b"

// TestSameOnEverySetOfKernels: in a process of its own each, which picks them at its start.
func TestSameOnEverySetOfKernels(t *testing.T) {
	if os.Getenv(tensor.EnvCPU) != "" {
		got, err := Fingerprint()
		if err != nil || got != recorded {
			t.Errorf("%s: %s, %v, recorded is %s", os.Getenv(tensor.EnvCPU), got, err, recorded)
		}
		return
	}
	for _, name := range tensor.Implementations() {
		c := exec.Command(os.Args[0], "-test.run", "^"+t.Name()+"$")
		c.Env = append(os.Environ(), tensor.EnvCPU+"="+name)
		if out, err := c.CombinedOutput(); err != nil {
			t.Errorf("%s: %v: %s", name, err, out)
		}
	}
}

// TestEverythingIsAsked: a new policy, architecture or type takes part in the self-test.
func TestEverythingIsAsked(t *testing.T) {
	for _, usage := range kvcache.Usage() {
		name, _, _ := strings.Cut(usage, ":")
		if !slices.ContainsFunc(policies, func(p string) bool { return p == name || strings.HasPrefix(p, name+":") }) {
			t.Errorf("no sequence has the policy %s", name)
		}
	}
	for dt := tensor.F32; dt.Valid(); dt++ {
		if !slices.ContainsFunc(types[:min(len(types), len(model.Architectures()))], func(t [2]tensor.DType) bool { return t[0] == dt || t[1] == dt }) {
			t.Errorf("nothing is of type %v", dt)
		}
	}
}
