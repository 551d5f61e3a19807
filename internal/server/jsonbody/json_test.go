package jsonbody

import (
	"encoding/json"
	"reflect"
	"testing"
)

func TestParseIDs(t *testing.T) {
	for in, want := range map[string][]int32{"[]": nil, " [ ]"[1:]: nil, "[1]": {1},
		"[1.0,2e0 , 30e-1]": {1, 2, 3}, "[ 1 ,\n2,3 ]": {1, 2, 3}} {
		if got, problem := ParseIDs(json.RawMessage(in), 10, 3); problem != "" || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %v %s", in, got, problem)
		}
	}
	for _, in := range []string{"", "1", "{}", "[1.5]", "[1e1]", "[true]", "[-1]", "[10]", "[1,2,3,4]", `["1"]`, "[[1]]", "[null]", "[99999999999999999999]"} {
		if _, problem := ParseIDs(json.RawMessage(in), 10, 3); problem == "" {
			t.Errorf("%s passed", in)
		}
	}
}
