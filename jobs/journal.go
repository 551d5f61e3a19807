package jobs

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"sync"
	"time"
)

// journal is the log of one job or batch: it numbers and chains the records and
// appends them one at a time.
type journal struct {
	name string

	write  sync.Mutex // one append at a time; guards the rest
	number uint32     // of the next record
	last   uint64     // number of the last message in the log
	prev   [sha256.Size]byte
	doubt  bool // an append was given up; the log may hold what we do not know
}

// verify takes a message that was read as the next record.
func (j *journal) verify(seq uint64, data []byte) (record, error) {
	r, err := decodeRecord(j.name, data)
	switch {
	case err != nil:
		return r, fmt.Errorf("record %d of %s (message %d): %w", j.number, j.name, seq, err)
	case r.number != j.number:
		return r, fmt.Errorf("record %d of %s (message %d): %w: record %d stands in its place, those between are gone", j.number, j.name, seq, ErrDamaged, r.number)
	case r.prev != j.prev:
		return r, fmt.Errorf("record %d of %s (message %d): %w: it does not follow the record before it", j.number, j.name, seq, ErrDamaged)
	}
	j.took(&r, seq)
	return r, nil
}

func (j *journal) took(r *record, seq uint64) {
	j.number, j.prev, j.last = r.number+1, r.sum, seq
}

// append writes r as the next record. It repeats the same bytes until they are
// known to be there or ctx ends: an acknowledgement may be lost, so after an
// error the journal is read to see whether the record made it. j.write is held.
// foreign takes records of somebody else that were found instead.
func (j *journal) append(ctx context.Context, l Log, r *record, foreign func(*record) error) (uint64, error) {
	if len(r.payload) > maxPayload {
		return 0, fmt.Errorf("jobs: a record of %d bytes for %s, at most %d fit", len(r.payload), j.name, maxPayload)
	}
	r.number, r.prev = j.number, j.prev
	data := r.encode(j.name)
	pause := 20 * time.Millisecond
	for {
		seq, err := l.Append(ctx, j.name, j.last, data)
		if err == nil {
			j.took(r, seq)
			return seq, nil
		}
		if errors.Is(err, ErrFull) {
			return 0, err // it was refused for certain
		}
		j.doubt = true
		at, read := j.find(ctx, l, data)
		switch {
		case at > 0:
			j.doubt = false
			j.took(r, at)
			return at, nil
		case read == nil && errors.Is(err, ErrConflict):
			if cerr := j.catchUp(ctx, l, foreign); cerr != nil {
				return 0, cerr
			}
			return 0, err
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
			pause = min(2*pause, 2*time.Second)
		case <-ctx.Done():
			timer.Stop()
			return 0, err
		}
	}
}

// find looks for data as the message after the last known one.
func (j *journal) find(ctx context.Context, l Log, data []byte) (at uint64, err error) {
	first := true
	err = l.Read(ctx, j.name, j.last, func(seq uint64, got []byte) error {
		if first && bytes.Equal(got, data) {
			at = seq
		}
		first = false
		return nil
	})
	return at, err
}

// catchUp reads what the log has beyond what is known.
func (j *journal) catchUp(ctx context.Context, l Log, foreign func(*record) error) error {
	err := l.Read(ctx, j.name, j.last, func(seq uint64, data []byte) error {
		r, err := j.verify(seq, data)
		if err != nil {
			return err
		}
		return foreign(&r)
	})
	if err == nil {
		j.doubt = false
	}
	return err
}
