package toolcall

import "testing"

func TestTypedParameters(t *testing.T) {
	const any = "null boolean integer number string array object"
	for _, c := range []struct{ types, text, want string }{
		{"string", "02134", `"02134"`}, {"string", "true", `"true"`}, {"string", "1e5", `"1e5"`}, {"string", "[1]", `"[1]"`},
		{"string", "null", `"null"`}, {"string", " a\n", `" a\n"`}, {"string", `"a"`, `"\"a\""`}, {"string", "", `""`},
		{"string null", "null", "null"}, {"string null", "None", "null"}, {"string null", "nan", `"nan"`}, {"string null", "true", `"true"`},
		{any, "1", `"1"`}, {any, "None", "null"}, {"string integer", "1", `"1"`}, {"string integer =1", "1", "1"}, {"string =true", "true", `"true"`},
		{"integer", "3", "3"}, {"integer", "3.0", "3"}, {"integer", "1e3", "1000"}, {"integer", " 007\n", "7"},
		{"integer", "0x10", "16"}, {"integer", "1_000", "1000"},
		{"integer", "3.5", "3.5"}, {"integer", "abc", `"abc"`}, {"integer", `"5"`, "5"}, {"integer", "", `""`}, {"integer null", "", "null"},
		{"integer number", "1.0", "1.0"}, {"integer number", ".5", "0.5"}, {"integer number", "nan", `"nan"`}, {"integer number null", "nan", "null"},
		{"boolean", "True", "true"}, {"boolean", "FALSE", "false"}, {"boolean", "true ", "true"}, {"boolean", "1", "1"}, {"boolean", "yes", `"yes"`},
		{"array", "['a', True, None,]", `["a", true, null]`}, {"array", "(1, 2)", "[1, 2]"}, {"array", "[1", `"[1"`}, {"array", "[1] x", `"[1] x"`},
		{"object", `{"a": 1}`, `{"a": 1}`}, {"object", `{'a': {1: .5}}`, `{"a": {"1": 0.5}}`}, {"object", `"{\"a\": 1}"`, `{"a": 1}`}, {"object", "a b", `"a b"`},
	} {
		if got := typed(types{"x": c.types}, "x", c.text); got != c.want {
			t.Errorf("%q for %s: %s, want %s", c.text, c.types, got, c.want)
		}
	}
	if got := typed(nil, "x", "1"); got != `"1"` {
		t.Errorf("without a schema: %s", got)
	}
}
