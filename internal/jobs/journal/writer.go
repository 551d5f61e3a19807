package journal

import (
	"context"
	"sync"
	"time"
)

// Writer performs the I/O of a Journal, one append at a time under its lock.
type Writer struct {
	sync.Mutex // guards the rest
	Journal
}

// NewWriter returns a Writer that has not read any record of the journal.
func NewWriter(name string) *Writer { return &Writer{Journal: Journal{Name: name}} }

// Append writes r as the next record (see Writing), until ctx ends. The lock must be held. It calls
// foreign for records of other processes that it finds.
func (j *Writer) Append(ctx context.Context, l Log, r *Record, foreign func(*Record) error) (uint64, error) {
	w, move := j.Write(r)
	for {
		switch move {
		case MoveAppend:
			move = w.Appended(l.Append(ctx, j.Name, j.last, w.Data))
		case MoveRead:
			read, err := j.beyond(ctx, l)
			move = w.Found(read, err, foreign)
		case MovePause:
			t := time.NewTimer(w.Pause)
			select {
			case <-t.C:
			case <-ctx.Done():
			}
			t.Stop()
			move = w.Waited(ctx.Err() != nil)
		case MoveEnd:
			return w.Seq, w.Err
		}
	}
}

// beyond reads the messages after the last known one.
func (j *Writer) beyond(ctx context.Context, l Log) (read []Message, err error) {
	err = l.Read(ctx, j.Name, j.last, func(seq uint64, data []byte) error {
		read = append(read, Message{seq, data})
		return nil
	})
	return read, err
}

// Read applies the messages after the last known one. The lock must be held.
func (j *Writer) Read(ctx context.Context, l Log, foreign func(*Record) error) error {
	read, err := j.beyond(ctx, l)
	if err != nil {
		return err
	}
	return j.CatchUp(read, foreign)
}
