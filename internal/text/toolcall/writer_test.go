package toolcall

import (
	"encoding/json"
	"testing"
)

func TestWriterRepairs(t *testing.T) {
	for text, want := range map[string]string{
		"{\"path\": \"l1\nl2\"}":             `{"path": "l1\nl2"}`,
		"{\"path\": \"a\tb\r\x01\"}":         `{"path": "a\tb\r\u0001"}`,
		`{"path": "C:\dir"}`:                 `{"path": "C:\\dir"}`,
		`{"path": "it\'s \x41 \u12 \`:        `{"path": "it's \\x41 \\u12 \\"}`,
		`{"a": "\\ \" \u00e9 \ud83d"}`:       `{"a": "\\ \" \u00e9 \ud83d"}`,
		`{"a": True, "b": False}`:            `{"a": true, "b": false}`,
		`{"a": None, "b": [NaN, nan]}`:       `{"a": null, "b": [null, null]}`,
		`{"a": Infinity, "b": -Infinity}`:    `{"a": null, "b": null}`,
		"{\"n\": 1, // one\n \"m\": 2}":      "{\"n\": 1, \n \"m\": 2}",
		"{\"n\": 1 # one\n, /* x */ }":       "{\"n\": 1 \n}",
		`{"n": 1,}`:                          `{"n": 1}`,
		`{"n": [1, 2, ], "m": {"a": 1,},}`:   `{"n": [1, 2], "m": {"a": 1}}`,
		`{"n": [1,,2], "a": ,}`:              `{"n": [1,2], "a": null}`,
		`{,"n": [,1]}`:                       `{"n": [1]}`,
		`{"n": 007}`:                         `{"n": 7}`,
		`{"n": -00.50, "m": +5}`:             `{"n": -0.50, "m": 5}`,
		`{"n": [.5, 5., 1.e3, 1_000]}`:       `{"n": [0.5, 5.0, 1.0e3, 1000]}`,
		`{"n": [0x1F, -0b11, 0o17, 0]}`:      `{"n": [31, -3, 15, 0]}`,
		`{"n": 1.2.3, "v": 10.0.0.1}`:        `{"n": "1.2.3", "v": "10.0.0.1"}`,
		`{'path': 'a', 'b': 'it's "x"'}`:     `{"path": "a", "b": "it's \"x\""}`,
		`{path: "a", b: Oslo}`:               `{"path": "a", "b": "Oslo"}`,
		`{"cmd": "echo "hello""}`:            `{"cmd": "echo \"hello\""}`,
		`{"t": "say "yes", and go", "u": 1}`: `{"t": "say \"yes\", and go", "u": 1}`,
		`{"a": "x", b: "y"}`:                 `{"a": "x", "b": "y"}`,
		"{\"a\": \"x\"\n\"b\": 1}":           "{\"a\": \"x\",\n\"b\": 1}",
		`{"a": 1 "b": 2}`:                    `{"a": 1, "b": 2}`,
		`{"a" 1, "b" = 2}`:                   `{"a": 1, "b" : 2}`,
		`{"a", "b": , "c":}`:                 `{"a":null, "b": null, "c":null}`,
		`{"a": [1, 2}`:                       `{"a": [1, 2]}`,
		`{"a": 1]`:                           `{"a": 1}`,
		`{"a": [{"b": "x`:                    `{"a": [{"b": "x"}]}`,
		`{"a`:                                `{"a":null}`,
		`{`:                                  `{}`,
		`{"arr": "x[0] y["k"] <b>"}`:         `{"arr": "x[0] y[\"k\"] <b>"}`,
	} {
		var w writer
		out, n, _ := w.take(text, true)
		if out += w.end(); out != want || n != len(text) {
			t.Errorf("%s: %s, %d bytes\nwant %s", text, out, n, want)
		}
		if !json.Valid([]byte(out)) {
			t.Errorf("%s: %s is not valid", text, out)
		}
	}
}

// Valid input is copied byte for byte, up to its closing bracket.
func TestWriterCopies(t *testing.T) {
	for _, text := range []string{
		`{}`, `[]`, `{"a":1}`, `{ "a" : [ 1 , -2.5e+10 , true , false , null , "x" ] , "b" : { } }`, "{\n\t\"a\": \"b\"\r\n}",
		`{"a": "}", "b": "],", "c": "\"", "d": "\\", "e": "it's, 'x': y", "f": "/* */ // #"}`, `[["a"], ["b", "c"], [{}]]`,
		`{"": "", " ": "\u0000", "日本": "naïve"}`, `{"a": "x" , "b": "y" }`, `{"a":"</tool_call>"}`,
	} {
		for _, tail := range []string{"", " more", `"`, "}", ","} {
			var w writer
			if out, n, done := w.take(text+tail, true); out != text || n != len(text) || !done {
				t.Errorf("%q: %q, %d bytes, done: %v", text+tail, out, n, done)
			}
		}
	}
}
