package openfiles

import (
	"os"
	"sync"
)

// Reserve holds idle open files. Its owner closes one when it needs a connection and the process
// has no free file left.
type Reserve struct {
	want int
	mu   sync.Mutex
	held []*os.File
}

// NewReserve returns a reserve for a listener: an eighth of all files, at most 64. The caller
// closes it.
func NewReserve() *Reserve { return newReserve(8, 64) }

func newReserve(part, most int) *Reserve {
	r := &Reserve{want: min(Limit()/part, most)}
	r.Fill()
	return r
}

// Take closes one of the files, which frees its place for a connection. It returns false if none is
// left.
func (r *Reserve) Take() bool {
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

// Fill reopens taken files, as far as files are free. Call it after accepting and after closing a
// connection.
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

// Close closes all files.
func (r *Reserve) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.want = 0
	for _, f := range r.held {
		_ = f.Close()
	}
	r.held = nil
}
