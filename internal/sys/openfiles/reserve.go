package openfiles

import (
	"os"
	"sync"
)

// Reserve holds files open that serve for nothing. Its owner gives one up when it needs a
// connection and the process has no other file left.
type Reserve struct {
	want int
	mu   sync.Mutex
	held []*os.File
}

// NewReserve is for the connections of a listener: an eighth of all files, 64 at most. Close it.
func NewReserve() *Reserve { return newReserve(8, 64) }

func newReserve(part, most int) *Reserve {
	r := &Reserve{want: min(Limit()/part, most)}
	r.Fill()
	return r
}

// Lend closes one of the files: the next connection can have its place. false: none is left.
func (r *Reserve) Lend() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := len(r.held)
	if n == 0 {
		return false
	}
	_ = r.held[n-1].Close()
	r.held = r.held[:n-1]
	return true
}

// Fill takes back what was lent, as far as there are files. Call it after a connection was
// accepted, and after one was closed.
func (r *Reserve) Fill() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(r.held) < r.want {
		f, err := os.Open(os.DevNull)
		if err != nil {
			return
		}
		r.held = append(r.held, f)
	}
}

// Close gives all files back.
func (r *Reserve) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.want = 0
	for _, f := range r.held {
		_ = f.Close()
	}
	r.held = nil
}
