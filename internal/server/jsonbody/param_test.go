package jsonbody

import "testing"

// TestTablesNameReadMembers: a decoder that reads a member which its table does not have breaks an
// invariant, so that no member is missing from /openapi.json.
func TestTablesNameReadMembers(t *testing.T) {
	f, e := Parse([]byte(`{"a":1}`), NewTable(Bool("b")))
	if e != nil {
		t.Fatal(e)
	}
	defer func() {
		if recover() == nil {
			t.Error("a member was read that no table has")
		}
	}()
	f.Get("a")
}
