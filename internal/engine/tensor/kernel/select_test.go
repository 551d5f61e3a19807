package kernel

import "testing"

func TestChooseImplementation(t *testing.T) {
	names := Names()
	if names[len(names)-1] != "portable" {
		t.Errorf("implementations %v", names)
	}
	for _, n := range names {
		if k, err := choose(n); err != nil || k.Name != n {
			t.Errorf("choose %q: %v", n, err)
		}
	}
	if k, err := choose("sse9"); err == nil || k == nil {
		t.Error("sse9 is an implementation")
	}
}
