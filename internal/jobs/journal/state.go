package journal

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"time"
)

// Journal is where one journal stands, as far as one process knows:
// it numbers and chains the records, and decides how one gets to the end of the log.
// It is pure; the shell is writer.go.
type Journal struct {
	Name   string
	number uint32 // of the next record
	last   uint64 // number of the last message in the log
	prev   [sha256.Size]byte
	doubt  bool // an append was given up; the log may hold what we do not know
}

// Last is the number of the last known message of the journal.
func (j *Journal) Last() uint64 { return j.last }

// Doubt tells that an append was given up: the journal is to be read (CatchUp)
// before anything is written.
func (j *Journal) Doubt() bool { return j.doubt }

// Message is one message of a journal as it was read.
type Message struct {
	Seq  uint64
	Data []byte
}

// Verify takes a message that was read as the next record.
func (j *Journal) Verify(seq uint64, data []byte) (Record, error) {
	r, err := Decode(j.Name, data)
	switch {
	case err != nil:
		return r, fmt.Errorf("record %d of %s (message %d): %w", j.number, j.Name, seq, err)
	case r.Number != j.number:
		return r, fmt.Errorf("record %d of %s (message %d): %w: record %d stands in its place, those between are gone", j.number, j.Name, seq, ErrDamaged, r.Number)
	case r.prev != j.prev:
		return r, fmt.Errorf("record %d of %s (message %d): %w: it does not follow the record before it", j.number, j.Name, seq, ErrDamaged)
	}
	j.took(&r, seq)
	return r, nil
}

func (j *Journal) took(r *Record, seq uint64) {
	j.number, j.prev, j.last = r.Number+1, r.sum, seq
}

// CatchUp takes what the log has beyond what is known. foreign takes each record.
func (j *Journal) CatchUp(read []Message, foreign func(*Record) error) error {
	for _, m := range read {
		r, err := j.Verify(m.Seq, m.Data)
		if err != nil {
			return err
		}
		if err := foreign(&r); err != nil {
			return err
		}
	}
	j.doubt = false
	return nil
}

// Move is what a Writing asks its shell to do next.
type Move uint8

// Moves. After each the shell says what came of it.
const (
	MoveAppend Move = iota // append Data after Last of the journal; then Appended
	MoveRead               // read what the journal has after Last; then Found
	MovePause              // wait for Pause, or end; then Waited
	MoveEnd                // it is over: Seq, or Err
)

const (
	firstPause = 20 * time.Millisecond
	maxPause   = 2 * time.Second
)

// Writing is one record on its way to the end of a journal. The same bytes are
// repeated until they are known to be there, or the shell ends it: an
// acknowledgement may be lost, so after an error the journal is read to see whether
// the record made it.
type Writing struct {
	Data  []byte
	Pause time.Duration
	Seq   uint64 // of the message, when it is there
	Err   error

	journal *Journal
	record  *Record
	refused error // what came of the newest append
}

// Write begins to write r as the next record.
func (j *Journal) Write(r *Record) (*Writing, Move) {
	w := &Writing{journal: j, record: r, Pause: firstPause / 2}
	if len(r.Payload) > maxPayload {
		w.Err = fmt.Errorf("jobs: a record of %d bytes for %s, at most %d fit", len(r.Payload), j.Name, maxPayload)
		return w, MoveEnd
	}
	r.Number, r.prev = j.number, j.prev
	w.Data = r.Encode(j.Name)
	return w, MoveAppend
}

func (w *Writing) there(seq uint64) Move {
	w.journal.doubt = false
	w.journal.took(w.record, seq)
	w.Seq = seq
	return MoveEnd
}

// Appended takes the answer to an append.
func (w *Writing) Appended(seq uint64, err error) Move {
	switch {
	case err == nil:
		return w.there(seq)
	case errors.Is(err, ErrFull): // it was refused for certain
		w.Err = err
		return MoveEnd
	}
	w.journal.doubt, w.refused = true, err
	return MoveRead
}

// Found takes what was read. foreign takes records of somebody else that were found
// instead.
func (w *Writing) Found(read []Message, err error, foreign func(*Record) error) Move {
	switch {
	case err == nil && len(read) > 0 && bytes.Equal(read[0].Data, w.Data):
		return w.there(read[0].Seq)
	case err == nil && errors.Is(w.refused, ErrConflict):
		if w.Err = w.journal.CatchUp(read, foreign); w.Err == nil {
			w.Err = w.refused
		}
		return MoveEnd
	}
	w.Pause = min(2*w.Pause, maxPause)
	return MovePause
}

// Waited goes on after a pause; ended: nobody wants the record any more. It may be
// there all the same, which is why the journal is in doubt then.
func (w *Writing) Waited(ended bool) Move {
	if ended {
		w.Err = w.refused
		return MoveEnd
	}
	return MoveAppend
}
