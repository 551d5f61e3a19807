package sessions

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"
)

// disk is a Keeper whose acknowledgements may be lost.
type disk struct {
	book   *Book
	stored map[string][][]byte
	state  map[string]State
	fails  error // of the next Record
	lost   bool  // it is stored all the same
	drops  int
}

func (d *disk) Record(_ context.Context, id string, turns int, payload []byte) error {
	err := d.fails
	d.fails = nil
	if err == nil || d.lost {
		d.stored[id] = append(d.stored[id], payload)
	}
	if err != nil {
		return err
	}
	return d.apply(id, payload)
}

func (d *disk) apply(id string, payload []byte) error {
	s := d.state[id]
	err := s.Add(id, payload, d.book.now().UnixMilli())
	if err == nil {
		d.state[id] = s
		d.book.Replace(id, s, "")
	}
	return err
}

func (d *disk) Settle(_ context.Context, id string) error {
	for n := d.state[id].Turns; n < len(d.stored[id]); n++ {
		if err := d.apply(id, d.stored[id][n]); err != nil {
			return err
		}
	}
	return nil
}

func (d *disk) End(_ context.Context, id string, turns int) error {
	if turns != d.state[id].Turns {
		return ErrMoved
	}
	d.drops++
	delete(d.stored, id)
	delete(d.state, id)
	return nil
}

// TestBook: turns of a session follow each other, one at a time. A turn that fails leaves no trace; one
// whose acknowledgement was lost is found. A session ends after its time to live.
func TestBook(t *testing.T) {
	for _, durable := range []bool{false, true} {
		t.Run(fmt.Sprint("durable ", durable), func(t *testing.T) {
			now := time.Unix(1000, 0)
			var d *disk
			b := NewBook(nil, func() time.Time { return now })
			if durable {
				d = &disk{stored: map[string][][]byte{}, state: map[string]State{}, book: b}
				b.recorder = d
			}
			ctx, id := t.Context(), ID("ann", "chat")
			look := func(turns int) {
				t.Helper()
				s, err := b.State(ctx, "ann", "chat")
				if turns == 0 && !errors.Is(err, ErrNotFound) || turns > 0 && err != nil || s.Turns != turns {
					t.Fatalf("%d turns, %v, want %d", s.Turns, err, turns)
				}
			}
			must := func(err, want error) {
				t.Helper()
				if !errors.Is(err, want) {
					t.Fatalf("%v, want %v", err, want)
				}
			}
			first, second := turns()[0], turns()[1]
			must(b.Begin(ctx, "ann", "chat", 1), ErrMoved)
			must(b.Begin(ctx, "ann", "chat", 0), nil)
			look(0)
			must(b.Begin(ctx, "ann", "chat", 0), ErrBusy)
			b.End(id) // the turn has failed
			look(0)
			must(b.Begin(ctx, "ann", "chat", 0), nil)
			must(b.Commit(ctx, id, 0, first), nil)
			look(1)
			must(b.Begin(ctx, "ann", "chat", 1), ErrBusy)
			must(b.Delete(ctx, "ann", "chat"), ErrBusy)
			if x, err := b.Get(ctx, "ann", "chat"); err != nil || x.Status != "running" {
				t.Fatal(x, err)
			}
			b.End(id)
			must(b.Begin(ctx, "ann", "chat", 0), ErrMoved)
			must(b.Begin(ctx, "ann", "chat", 1), nil)
			must(b.Commit(ctx, id, 1, first), ErrRecord) // not a second turn
			b.End(id)
			look(1)
			must(b.Delete(ctx, "bob", "chat"), ErrNotFound)
			if x, err := b.Get(ctx, "ann", "chat"); err != nil || x.Turns != 1 || x.Tokens != 4 ||
				x.Status != "idle" || x.Expires != 1060 || x.Durable != durable {
				t.Fatalf("%+v, %v", x, err)
			}
			if durable {
				for _, lost := range []bool{false, true} {
					errNoAnswer := errors.New("no answer")
					d.fails, d.lost = errNoAnswer, lost
					must(b.Begin(ctx, "ann", "chat", 1), nil)
					must(b.Commit(ctx, id, 1, second), errNoAnswer)
					b.End(id)
					look(map[bool]int{false: 1, true: 2}[lost])
				}
			}
			if list := b.Of("ann"); len(list) != 1 || list[0].Name != "chat" || len(b.Of("bob")) != 0 {
				t.Fatalf("%+v", list)
			}

			// A running turn holds its session; then the time is over.
			state, err := b.State(ctx, "ann", "chat")
			must(err, nil)
			turns := state.Turns
			must(b.Begin(ctx, "ann", "chat", turns), nil)
			now = now.Add(time.Hour)
			must(b.Sweep(ctx), nil)
			look(turns)
			b.End(id)
			look(0)
			if len(b.Of("ann")) != 0 {
				t.Fatal("a session is listed whose time is over")
			}
			must(b.Begin(ctx, "ann", "chat", 0), nil) // in place of the old one
			must(b.Commit(ctx, id, 0, first), nil)
			b.End(id)
			look(1)
			now = now.Add(time.Hour)
			must(b.Sweep(ctx), nil)
			if n, tokens := b.Totals(); n != 0 || tokens != 0 || b.bytes != 0 || durable && (d.drops != 2 || len(d.stored) != 0) {
				t.Fatal(n, tokens, b.bytes)
			}

			b.Replace(id, State{}, "bits")
			_, err = b.State(ctx, "ann", "chat")
			must(err, ErrDamaged)
			must(b.Begin(ctx, "ann", "chat", 0), ErrMoved)
			if x, err := b.Get(ctx, "ann", "chat"); err != nil || x.Status != "damaged" || x.Name != "chat" {
				t.Fatal(x, err)
			}
			must(b.Delete(ctx, "ann", "chat"), nil)
			look(0)

			for i := range MaxSessions {
				must(b.Begin(ctx, "", fmt.Sprint(i), 0), nil)
			}
			must(b.Begin(ctx, "ann", "chat", 0), ErrMany)
			b.End(ID("", "7"))
			must(b.Begin(ctx, "ann", "chat", 0), nil)
			b.bytes = MaxAllBytes
			b.End(id)
			must(b.Begin(ctx, "ann", "chat", 0), ErrLarge)
		})
	}
}

// TestFailedTurnsAreSwept: a first turn that was not recorded leaves no session, and one whose acknowledgement was
// lost leaves its turn. A turn that does not fit is not recorded.
func TestFailedTurnsAreSwept(t *testing.T) {
	d := &disk{stored: map[string][][]byte{}, state: map[string]State{}}
	b := NewBook(d, time.Now)
	d.book = b
	ctx, failure := t.Context(), errors.New("the disk is away")
	for name, lost := range map[string]bool{"gone": false, "stored": true} {
		first := turns()[0]
		head := *first.Head
		head.Name = name
		first.Head = &head
		id := ID(head.Tenant, name)
		if err := b.Begin(ctx, head.Tenant, name, 0); err != nil {
			t.Fatal(err)
		}
		d.fails, d.lost = failure, lost
		if err := b.Commit(ctx, id, 0, first); !errors.Is(err, failure) {
			t.Fatal(err)
		}
		b.End(id)
	}
	if err := b.Sweep(ctx); err != nil || len(b.all) != 1 {
		t.Fatalf("%v, %d sessions, want 1", err, len(b.all))
	}
	id := ID(turns()[0].Head.Tenant, "stored")
	if s, err := b.State(ctx, "ann", "stored"); err != nil || s.Turns != 1 {
		t.Fatalf("%d turns, want 1, %v", s.Turns, err)
	}
	if err := b.Begin(ctx, "ann", "stored", 1); err != nil {
		t.Fatal(err)
	}
	b.bytes = MaxAllBytes - 1
	if err := b.Commit(ctx, id, 1, turns()[1]); !errors.Is(err, ErrLarge) || len(d.stored[id]) != 1 {
		t.Fatal(err)
	}
}

// TestShares: no API key can use all sessions, or all bytes of sessions. Others can always begin one.
func TestShares(t *testing.T) {
	b := NewBook(nil, time.Now)
	ctx := t.Context()
	begin := func(tenant string) (n int, err error) {
		for ; n < 2*MaxSessions; n++ {
			if err = b.Begin(ctx, tenant, fmt.Sprint(n), 0); err != nil {
				return n, err
			}
		}
		return n, nil
	}
	left := MaxSessions
	for _, tenant := range []string{"ann", "bob", "cid"} {
		n, err := begin(tenant)
		if !errors.Is(err, ErrShare) || n != left/2 {
			t.Fatalf("%s has %d sessions, %d were free: %v", tenant, n, left, err)
		}
		left -= n
	}
	for i := range 200 { // sessions of one key end: another may have half of their places
		b.End(ID("ann", fmt.Sprint(i)))
	}
	for left += 200; ; left-- {
		if err := b.Begin(ctx, "bob", fmt.Sprint("more", left), 0); err != nil {
			break
		}
	}
	if n, _ := b.ofTenant("bob"); n != 256+36 || left != 128+200-36 {
		t.Fatalf("bob has %d sessions, %d are free", n, left)
	}
	if n, err := begin(""); n != left || !errors.Is(err, ErrMany) { // without API keys there is nobody else
		t.Fatalf("%d sessions, want %d: %v", n, left, err)
	}

	b = NewBook(nil, time.Now)
	large := func(tenant, name string, bytes int64) {
		s := State{Head: Head{Tenant: tenant, Name: name}, Turns: 1, Bytes: bytes, TTL: 60, Used: time.Now().UnixMilli()}
		b.Replace(ID(tenant, name), s, "")
	}
	for i := range 4 {
		large("ann", fmt.Sprint(i), MaxAllBytes/8-1)
	}
	if err := b.Begin(ctx, "ann", "0", 1); err != nil {
		t.Fatal(err)
	}
	long := Turn{TTL: 60, Prompt: make([]int32, 100)}
	if err := b.Commit(ctx, ID("ann", "0"), 1, long); !errors.Is(err, ErrLarge) {
		t.Fatal(err)
	}
	b.End(ID("ann", "0"))
	large("ann", "4", 100)
	if err := b.Begin(ctx, "ann", "0", 1); !errors.Is(err, ErrLarge) {
		t.Fatal(err)
	}
	if err := b.Begin(ctx, "bob", "0", 0); err != nil {
		t.Fatal(err)
	}
}
