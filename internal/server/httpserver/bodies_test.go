package httpserver

import "testing"

// The bodies of one key leave room for those of others.
func TestBodiesOfOneKey(t *testing.T) {
	b := &bodyBudget{total: 100, perKey: 60, byKey: map[string]int64{}}
	if e := b.book("a", 60); e != nil {
		t.Fatal(e)
	}
	if e := b.book("a", 1); e == nil || e.Status != 429 {
		t.Errorf("a second body of the key: %v", e)
	}
	if e := b.book("b", 40); e != nil {
		t.Errorf("another key: %v", e)
	}
	if e := b.book("c", 1); e == nil || e.Status != 503 {
		t.Errorf("beyond the whole: %v", e)
	}
	b.release("a", 60)
	b.release("b", 40)
	if b.used != 0 || len(b.byKey) != 0 {
		t.Errorf("left over: %d, %v", b.used, b.byKey)
	}
}

func TestConnectionLimit(t *testing.T) {
	for _, c := range []struct{ wanted, files, open, want int }{{1024, 0, 0, 1024}, {1024, 64, 34, 22},
		{1024, 1 << 20, 34, 1024}, {1024, 64, 64, 4}} {
		if got := connectionLimit(c.wanted, c.files, c.open); got != c.want {
			t.Errorf("%d wanted, %d of %d files open: %d, want %d", c.wanted, c.open, c.files, got, c.want)
		}
	}
}
