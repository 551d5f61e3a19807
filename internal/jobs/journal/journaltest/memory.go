// Package journaltest has a log in memory for tests.
package journaltest

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/shoal-llm/shoal/internal/jobs/journal"
)

// MemoryLog is a journal.Log in memory, into whose appends a test can inject faults.
type MemoryLog struct {
	mu       sync.Mutex
	messages []memoryMessage
	last     uint64

	fault func(name string, data []byte, done bool) error
}

type memoryMessage struct {
	journal string
	seq     uint64
	data    []byte
}

func NewMemoryLog() *MemoryLog { return &MemoryLog{} }

// SetFault makes each Append call f before (done false) and after (done true) it stores the
// message. The caller gets the error of f. An error after the append leaves the message stored.
func (l *MemoryLog) SetFault(f func(name string, data []byte, done bool) error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fault = f
}

func (l *MemoryLog) Append(ctx context.Context, name string, after uint64, data []byte) (uint64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	if l.fault != nil {
		if err := l.fault(name, data, false); err != nil {
			return 0, err
		}
	}
	var last uint64
	for i := len(l.messages) - 1; i >= 0 && last == 0; i-- {
		if l.messages[i].journal == name {
			last = l.messages[i].seq
		}
	}
	if last != after {
		return 0, fmt.Errorf("%w: its last message is %d, not %d", journal.ErrConflict, last, after)
	}
	l.last++
	l.messages = append(l.messages, memoryMessage{name, l.last, slices.Clone(data)})
	if l.fault != nil {
		if err := l.fault(name, data, true); err != nil {
			return 0, err
		}
	}
	return l.last, nil
}

func (l *MemoryLog) Read(ctx context.Context, name string, after uint64, each func(uint64, []byte) error) error {
	return l.Scan(ctx, func(j string, seq uint64, data []byte) error {
		if j != name || seq <= after {
			return nil
		}
		return each(seq, data)
	})
}

func (l *MemoryLog) Scan(ctx context.Context, each func(string, uint64, []byte) error) error {
	l.mu.Lock()
	all := slices.Clone(l.messages)
	l.mu.Unlock()
	for _, m := range all {
		if err := each(m.journal, m.seq, m.data); err != nil {
			return err
		}
	}
	return ctx.Err()
}

func (l *MemoryLog) Follow(ctx context.Context, after uint64, each func(string, uint64)) error {
	t := time.NewTicker(time.Millisecond)
	defer t.Stop()
	for {
		err := l.Scan(ctx, func(j string, seq uint64, _ []byte) error {
			if seq > after {
				after = seq
				each(j, seq)
			}
			return nil
		})
		if err != nil {
			return err
		}
		select {
		case <-t.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (l *MemoryLog) Last(ctx context.Context, name string) (seq uint64, data []byte, err error) {
	err = l.Scan(ctx, func(j string, n uint64, b []byte) error {
		if j == name {
			seq, data = n, b
		}
		return nil
	})
	return seq, data, err
}

func (l *MemoryLog) Journals(ctx context.Context) (out []string, err error) {
	err = l.Scan(ctx, func(j string, _ uint64, _ []byte) error {
		if !slices.Contains(out, j) {
			out = append(out, j)
		}
		return nil
	})
	return out, err
}

func (l *MemoryLog) Drop(ctx context.Context, name string) error {
	return l.DropThrough(ctx, name, math.MaxUint64)
}

func (l *MemoryLog) DropThrough(_ context.Context, name string, seq uint64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.messages = slices.DeleteFunc(l.messages, func(m memoryMessage) bool { return m.journal == name && m.seq <= seq })
	return nil
}

func (l *MemoryLog) Clear(context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.messages = nil
	return nil
}

func (l *MemoryLog) Usage(context.Context) (journal.Usage, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	u := journal.Usage{Last: l.last}
	for _, m := range l.messages {
		u.Bytes += int64(len(m.data))
	}
	return u, nil
}

func (l *MemoryLog) Close() error { return nil }
