package toolcall

import "testing"

func TestRepair(t *testing.T) {
	for text, want := range map[string]string{
		`{"path": "x", "n": 1.50}`: `{"path": "x", "n": 1.50}`,
		" {\"a\":1}\n":             " {\"a\":1}\n",
		`{}`:                       `{}`,
		`{"path": "cut he`:         `{"path": "cut he"}`,
		`{"path": "a", "n`:         `{"path": "a", "n":null}`,
		`{"path": ["a", {"b": `:    `{"path": ["a", {"b":null}]}`,
		`{"path": "a",}`:           `{"path": "a"}`,
		`{'path': True}`:           `{"path": true}`,
		"{\"path\": \"a\nb\"}":     `{"path": "a\nb"}`,
		`{"path": "a"} trailing`:   `{"path": "a"}`,
		`{`:                        `{}`,
		`"{\"path\": \"a\"}"`:      `{"path": "a"}`,
		`"{\"path\": \"cut he"`:    `{"path": "cut he"}`,
		``:                         `{}`,
		`null`:                     `{}`,
		`not json`:                 `{}`,
		`[1]`:                      `{}`,
		`7`:                        `{}`,
		`"text"`:                   `{}`,
		`"cut`:                     `{}`,
	} {
		if got := Repair(text); got != want {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
}
