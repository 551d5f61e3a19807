package saved

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/lora"
)

// slowDigest is Text.Cache, a token at a time.
func slowDigest(t *Text, prompt, tokens int) [32]byte {
	h := sha256.New()
	fmt.Fprintf(h, "shoal idle cache 1\x00%d %s%x %d %d\x00", len(t.Policy), t.Policy, t.Adapter.Bytes(), prompt, tokens)
	for _, token := range slices.Concat(t.Prompt, t.Output)[:tokens] {
		h.Write(binary.LittleEndian.AppendUint32(nil, uint32(token)))
	}
	return [32]byte(h.Sum(nil))
}

// A digest depends on every token, and on nothing after them. It is that of the files of earlier builds.
func TestTextCache(t *testing.T) {
	x := Text{Policy: "tova:size=64", Adapter: lora.ID{1}}
	for i := range int32(3000) {
		x.Prompt = append(x.Prompt, i*7-900)
	}
	for i := range int32(1500) {
		x.Output = append(x.Output, i*3)
	}
	for _, tokens := range []int{1, 1023, 1024, 1025, 2999, 3000, 3001, 4024, 4500} {
		c := x.Cache(1, tokens)
		if want := (Cache{Prompt: 1, Tokens: tokens, Digest: slowDigest(&x, 1, tokens)}); c != want {
			t.Errorf("%d tokens: %+v, want %+v", tokens, c, want)
		}
		longer, other := x, x
		longer.Output = append(slices.Clone(x.Output), 5)
		other.Prompt = slices.Clone(x.Prompt)
		other.Prompt[0]++
		if longer.Cache(1, tokens) != c || other.Cache(1, tokens) == c || x.Cache(min(2, tokens), tokens) == c && tokens > 1 {
			t.Errorf("%d tokens: the digest of another text", tokens)
		}
	}
}

// Beginnings has the caches of the first tokens, and no other.
func TestBeginnings(t *testing.T) {
	x := Text{Policy: "p", Prompt: []int32{1, 2, 3}, Output: []int32{4, 5}}
	good := []Found{{Rank: 1, Cache: x.Cache(2, 2)}, {Rank: 0, Cache: x.Cache(3, 4)}}
	other := x
	other.Policy = "q"
	bad := []Found{{Cache: x.Cache(3, 5)}, {Cache: other.Cache(3, 4)}, {Cache: x.Cache(3, 2)}, {Cache: x.Cache(0, 2)},
		{Cache: Cache{Prompt: 3, Tokens: 9}}, {Cache: Cache{Prompt: 1, Tokens: -1}}}
	if got := x.Beginnings(slices.Concat(bad[:2], good, bad[2:])); !slices.Equal(got, good) {
		t.Errorf("%+v, want %+v", got, good)
	}
}

// A cache for which there was no room is ordered again when there is room, or when nobody knows.
func TestFile(t *testing.T) {
	var f File
	if !f.Ready(0, 0) {
		t.Error("an unknown size does not fit")
	}
	f.Order(3, 100)
	if f.Ready(100, 1) || f.Hangs(100+4999, 5000) || !f.Hangs(100+5000, 5000) {
		t.Errorf("an order: %+v", f)
	}
	f.End(Done{Err: "no room", Lacks: 500}, 1000)
	if f.Ready(1<<40, 499) || f.Ready(1000, 500) || !f.Ready(1000+retryMillis, 500) || f.Hangs(1<<40, 1) {
		t.Errorf("without room: %+v", f)
	}
	wait := int64(0)
	for i := range 20 {
		f.Order(4, 0)
		f.End(Done{Err: "it fails"}, 0)
		if f.after < wait || f.after > retryMillis<<maxDoubling {
			t.Errorf("after %d failures the next attempt is in %d ms, before in %d", i+2, f.after, wait)
		}
		wait = f.after
	}
	f.Order(5, 0)
	if f.End(Done{}, 0); !f.Written || f.Ready(1<<40, 1<<40) {
		t.Errorf("a cache that is in its file: %+v", f)
	}
}

// Each socket is asked once to remove the files of a session that is over, until it has.
func TestEnded(t *testing.T) {
	var e Ended
	number, numbers := uint64(0), map[uint64]bool{}
	due := func(epoch uint32, want string, ids ...string) {
		t.Helper()
		got := ""
		for _, r := range e.Due(epoch, ids, func() uint64 { number++; return number }) {
			got += fmt.Sprint(r.Session, r.Sockets, " ")
			if numbers[r.Number] {
				t.Errorf("two orders have number %d", r.Number)
			}
			numbers[r.Number] = true
		}
		if got != want {
			t.Errorf("due are %q, want %q", got, want)
		}
	}
	e.Add("s")
	due(1, "s[0 1] ", "a", "b")
	due(1, "", "a", "b")
	e.Done(Done{Number: 1})
	due(2, "s[1] ", "a", "c") // c was away
	e.Add("t")
	due(2, "t[0 1] ", "a", "c")
	e.Done(Done{Number: 2, Err: "it fails"})
	due(3, "s[1] t[0 1] ", "a", "c") // the answer for t did not come
	e.Add("s")
	e.Remove("t")
	due(3, "s[0 1] ", "a", "c") // it began and ended again
	e.Done(Done{Number: number})
	due(4, "", "a", "c")
	for i := range maxEnded + 5 {
		e.Add(fmt.Sprint(i))
	}
	if len(e.list) != maxEnded || e.list[0].session != "5" {
		t.Errorf("%d sessions are remembered from %s on", len(e.list), e.list[0].session)
	}
}
