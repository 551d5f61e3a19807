package collective

import (
	"bytes"
	"errors"
	"sync"
	"testing"
	"time"
)

// TestPost: a post arrives with its source while operations run and is not mixed up with them. A
// post of another epoch is dropped, as is a post to a group without OnPost.
func TestPost(t *testing.T) {
	wires := NewMemory(3)
	type posted struct {
		src  int
		what string
	}
	var mu sync.Mutex
	var all []posted
	arrived := make(chan bool, 16)
	groups := make([]*Group, 3)
	for r := range groups {
		c := Config{Rank: r, Size: 3, Epoch: 4, ChunkBytes: 64, Deadline: time.Minute}
		if r == 1 {
			c.OnPost = func(src int, payload []byte) {
				mu.Lock()
				defer mu.Unlock()
				all = append(all, posted{src, string(payload)})
				arrived <- true
			}
		}
		g, err := NewGroup(c, wires[r])
		if err != nil {
			t.Fatal(err)
		}
		defer func() { g.Close(); <-g.Done() }()
		groups[r] = g
	}
	for _, bad := range []error{groups[0].Post(0, nil), groups[0].Post(3, nil), groups[0].Post(-1, nil), groups[0].Post(1, make([]byte, 65))} {
		if !errors.Is(bad, ErrArgument) {
			t.Errorf("a post that cannot be: %v", bad)
		}
	}
	old := make([]byte, MessageBytes(1))
	PutMessage(old, Header{Kind: KindPost, Size: 3, Epoch: 3, Chunks: 1, Length: 1})
	if err := wires[0].Send(1, old); err != nil {
		t.Fatal(err)
	}
	for src, what := range map[int]string{0: "a", 2: string(bytes.Repeat([]byte("b"), 64))} {
		for _, dst := range []int{1, 2 - src} { // nobody receives the second
			if err := groups[src].Post(dst, []byte(what)); err != nil {
				t.Fatal(err)
			}
		}
	}
	done := make(chan error, 3)
	for _, g := range groups {
		g.Barrier(Op(0, 1), func(err error) { done <- err })
	}
	for range groups {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	<-arrived
	<-arrived
	mu.Lock()
	defer mu.Unlock()
	for _, h := range all {
		if want := map[int]string{0: "a", 2: string(bytes.Repeat([]byte("b"), 64))}[h.src]; h.what != want {
			t.Errorf("rank %d posted %q, rank 1 heard %q", h.src, want, h.what)
		}
	}
	if dropped := groups[1].Stats().Dropped[DropEpoch]; len(all) != 2 || dropped != 1 {
		t.Errorf("%d were heard, %d of another epoch dropped", len(all), dropped)
	}
	groups[0].Fail(nil)
	if err := groups[0].Post(1, nil); err == nil {
		t.Error("a group that has failed posts")
	}
}
