package saved

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/lora"
)

// slowDigest computes the digest of Text.Cache one token at a time.
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

// A cache for which there was no room is ordered again when there is room, or when the room is not known.
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

// staleRig asks for orders and compares them.
type staleRig struct {
	*testing.T
	Stale
	number uint64
}

func (e *staleRig) wants(epoch uint32, now int64, want string, ids ...string) {
	e.Helper()
	got := ""
	if e.Asks(epoch, now) {
		for _, r := range e.Due(epoch, now, ids, func() uint64 { e.number++; return e.number }) {
			got += fmt.Sprint(r.Session, r.Sockets, " ")
		}
	}
	if got != want || e.Asks(epoch, now) {
		e.Errorf("due are %q, want %q; more may be due: %v", got, want, e.Asks(epoch, now))
	}
}

// Each socket is asked to remove the files of a session that is over, until it has. After an error it is asked again in a
// minute, or in the next epoch.
func TestStale(t *testing.T) {
	e := staleRig{T: t}
	e.End("s")
	e.wants(1, 0, "s[0 1] ", "a", "b")
	e.wants(1, 0, "", "a", "b")
	e.Done(Done{Number: 1}, 0)
	e.wants(1, 1<<40, "", "a", "b")
	e.wants(2, 0, "s[1] ", "a", "c") // c was away
	e.End("t")
	e.wants(2, 0, "t[0 1] ", "a", "c")
	e.Done(Done{Number: 2, Err: "it fails"}, 100)
	e.wants(2, 100+removalMillis-1, "", "a", "c")
	e.Done(Done{Number: 2, Err: "a second answer"}, 1000)
	e.wants(2, 100+removalMillis, "s[1] ", "a", "c")
	e.Done(Done{Number: e.number, Err: "it fails"}, 100_000)
	e.wants(3, 100_000, "s[1] t[0 1] ", "a", "c") // the answer for t did not come
	e.Done(Done{Number: 3}, 100_000)              // too late: its epoch is over
	e.End("s")
	e.wants(3, 100_000, "s[0 1] ", "a", "c")
	e.Done(Done{Number: e.number}, 0)
	e.Done(Done{Number: e.number - 1}, 0) // t
	e.wants(4, 0, "", "c", "a")
	e.wants(5, 0, "", "a")
	if n := len(e.list[0].clean); n != 1 {
		t.Errorf("%d sockets are remembered, one is there", n)
	}
	for i := range maxStale + 5 {
		e.End(fmt.Sprint(i))
	}
	if len(e.list) != maxStale || e.list[0].session != "5" {
		t.Errorf("%d sessions are remembered from %s on", len(e.list), e.list[0].session)
	}
}

// A newer session of the name keeps its file. The files of the older one are removed from the other sockets, also from
// those that had a file of the newer one before.
func TestStaleNameAgain(t *testing.T) {
	e := staleRig{T: t}
	e.End("s")
	e.wants(1, 0, "s[0] ", "a")
	e.Writes("s", "a")
	e.Done(Done{Number: 1, Err: "it fails"}, 0)
	e.wants(1, removalMillis, "", "a")
	e.Wrote("s", "a")
	e.wants(2, 0, "s[1] ", "a", "b")
	e.wants(3, 0, "s[0] ", "b")
	e.Done(Done{Number: e.number}, 0)
	e.wants(4, 0, "", "a", "b") // a was absent, and has the file
	e.Writes("s", "b")
	e.wants(5, 0, "", "a", "b")
	e.Wrote("s", "b")
	e.wants(6, 0, "s[0] ", "a", "b")
	e.End("s")
	e.wants(6, 0, "s[0 1] ", "a", "b") // the newer one is over
}

// The newest cache of a session is on another socket. The older files are removed as those of ended sessions are: after an
// error again, and from sockets that were away.
func TestStaleOlder(t *testing.T) {
	e := staleRig{T: t}
	e.Writes("s", "a")
	e.Wrote("s", "a")
	e.wants(1, 0, "s[1] ", "a", "b")
	e.Writes("s", "b") // before the answer
	e.Done(Done{Number: 1}, 0)
	e.Wrote("s", "b")
	e.wants(1, 0, "s[0] ", "a", "b")
	e.Done(Done{Number: 2, Err: "it fails"}, 100)
	e.wants(1, 100+removalMillis-1, "", "a", "b")
	e.wants(1, 100+removalMillis, "s[0] ", "a", "b")
	e.Done(Done{Number: 3}, 0)
	e.Writes("s", "b") // the next turn
	e.Wrote("s", "b")
	e.wants(1, 1<<40, "", "a", "b")
	e.wants(2, 0, "s[0] ", "c", "b") // c was away
	e.Writes("s", "c")
	e.wants(3, 0, "s[0] ", "a", "b", "c") // the first is still needed if the write fails
	e.Wrote("s", "c")
	e.wants(3, 0, "s[1] ", "a", "b", "c")
	e.End("s")
	e.wants(3, 0, "s[0 1 2] ", "a", "b", "c")
}

// Many sessions ended while a socket was away. It has maxRemovals orders at a time, and refuses none for good. The other
// socket does not wait for it.
func TestStaleAreBounded(t *testing.T) {
	var e Stale
	number, under, removed := uint64(0), map[uint64]Removal{}, map[string]bool{}
	ids := []string{"a", "b"}
	due := func(now int64) (n int) {
		for _, r := range e.Due(1, now, ids, func() uint64 { number++; return number }) {
			under[r.Number] = r
			n++
		}
		for i := range ids {
			count := 0
			for _, r := range under {
				if slices.Contains(r.Sockets, i) {
					count++
				}
			}
			if count > maxRemovals {
				t.Fatalf("socket %d has %d orders", i, count)
			}
		}
		return n
	}
	for i := range 1000 {
		e.End(fmt.Sprint(i))
	}
	scans, refuse := 0, 300
	for now := int64(0); len(removed) < 2000; now += 1000 {
		if now > 10*removalMillis {
			t.Fatalf("%d of 2000 files were removed", len(removed))
		}
		if e.Asks(1, now) {
			scans++
			due(now)
		}
		for _, number := range slices.Sorted(maps.Keys(under)) {
			r := under[number]
			delete(under, number)
			d := Done{Number: number}
			if refuse--; refuse > 0 {
				d.Err = "too many wait"
			}
			if slices.Contains(r.Sockets, 1) && now%3000 > 0 { // b is slow
				under[number] = r
				continue
			}
			for _, i := range r.Sockets {
				if d.Err == "" {
					removed[fmt.Sprint(r.Session, " ", i)] = true
				}
			}
			e.Done(d, now)
		}
	}
	if scans > 100 {
		t.Errorf("%d scans of the list", scans)
	}
}
