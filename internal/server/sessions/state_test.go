package sessions

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/server/engine"
)

var head = Head{Tenant: "ann", Name: "chat", Model: "m", Fingerprint: "f", Policy: "streaming", Chat: "c"}

func turns() []Turn {
	return []Turn{
		{Head: &head, TTL: 60, Prompt: []int32{1, 2, 3}, Output: []int32{4},
			Messages: []engine.Message{{Role: "user", Content: "a"}, {Role: "assistant", Content: "b"}}},
		{TTL: 90, Prompt: []int32{5}, Messages: []engine.Message{{Role: "user", Content: "c"}, {Role: "assistant", Calls: []byte(`[{"id":"x"}]`), Empty: true}}},
	}
}

// TestState: a session is the fold of its turns, through their form on disk. A turn that cannot be the next
// one changes nothing.
func TestState(t *testing.T) {
	var s State
	bytes := 0
	for i, turn := range turns() {
		b, err := turn.Encode()
		if err != nil {
			t.Fatal(err)
		}
		back, err := DecodeTurn(b)
		if err != nil || !reflect.DeepEqual(back, turn) {
			t.Fatalf("turn %d: %+v, %v", i, back, err)
		}
		if err := s.Apply(&back, int64(1000*(i+1)), len(b)); err != nil {
			t.Fatal(err)
		}
		bytes += len(b)
	}
	want := State{Head: head, TTL: 90, Created: 1000, Used: 2000, Turns: 2, First: 3, IDs: []int32{1, 2, 3, 4, 5}, Bytes: int64(bytes),
		Messages: append(turns()[0].Messages, turns()[1].Messages...)}
	if !reflect.DeepEqual(s, want) || s.Ends() != 92000 {
		t.Errorf("%+v, ends at %d", s, s.Ends())
	}
	for text, bad := range map[string]Turn{
		"turn 3 has settings": turns()[0], "has no prompt": {TTL: 1, Output: []int32{1}},
		"time to live is 0 s: want 1 to 2592000": {Prompt: []int32{1}},
		"token 0 has the id -1":                  {TTL: 1, Prompt: []int32{-1}},
		"time to live is 2678400 s":              {TTL: 31 * 86400, Prompt: []int32{1}},
	} {
		if err := s.Apply(&bad, 3000, 1); !errors.Is(err, ErrRecord) || !strings.Contains(err.Error(), text) || !reflect.DeepEqual(s, want) {
			t.Errorf("%v, want %q; %+v", err, text, s)
		}
	}
	var fresh State
	if err := fresh.Apply(&turns()[1], 1, 1); !errors.Is(err, ErrRecord) || !strings.Contains(err.Error(), "first turn has no settings") ||
		fresh.Turns != 0 {
		t.Errorf("a session without a head: %v", err)
	}
	long := Turn{TTL: 1, Prompt: make([]int32, MaxTurnBytes/2)}
	if _, err := long.Encode(); !errors.Is(err, ErrRecord) {
		t.Errorf("a record of more than %d bytes: %v", MaxTurnBytes, err)
	}
}

// FuzzTurn: any bytes give a turn that is within its bounds and has the same form again, or an error.
func FuzzTurn(f *testing.F) {
	for _, turn := range turns() {
		b, err := turn.Encode()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte(`{"ttl":1,"prompt":[1e9]}`))
	f.Add([]byte(`{"ttl":1,"prompt":[1],"extra":2}`))
	f.Add([]byte(strings.Repeat("[", 10000)))
	f.Fuzz(func(t *testing.T, b []byte) {
		turn, err := DecodeTurn(b)
		if err != nil {
			if !errors.Is(err, ErrRecord) {
				t.Fatal(err)
			}
			return
		}
		again, err := turn.Encode()
		if err != nil {
			t.Fatal(err)
		}
		back, err := DecodeTurn(again)
		if err != nil {
			t.Fatalf("%s: %v", again, err)
		}
		var a, z State
		if e1, e2 := a.Apply(&turn, 1, 1), z.Apply(&back, 1, 1); (e1 == nil) != (e2 == nil) || len(a.IDs) != len(z.IDs) || a.Turns != z.Turns {
			t.Fatalf("%v, %v", e1, e2)
		}
	})
}
