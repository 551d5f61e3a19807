package layer

import "testing"

// TestOpsHaveTables: every operation has a name of its own and is computed by the processor.
func TestOpsHaveTables(t *testing.T) {
	named := map[string]Op{}
	for op := range Ops {
		name := op.String()
		if before, twice := named[name]; name == "" || twice {
			t.Errorf("operation %d is called %q, as %d is", op, name, before)
		}
		named[name] = op
		if operations[op] == nil {
			t.Errorf("the processor does not compute %s", op)
		}
	}
}
