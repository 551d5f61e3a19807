package layer

import "testing"

// TestOpsHaveTables checks that every operation has a unique name and an implementation.
func TestOpsHaveTables(t *testing.T) {
	named := map[string]Op{}
	for op := range Ops {
		name := op.String()
		if before, twice := named[name]; name == "" || twice {
			t.Errorf("operation %d has the name %q of operation %d", op, name, before)
		}
		named[name] = op
		if operations[op] == nil {
			t.Errorf("the processor has no implementation of %s", op)
		}
	}
}
