package journal

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"time"
)

// Journal is one process's knowledge of a journal. It numbers and chains the records and decides
// how a record reaches the end of the log. It is pure; Writer carries out its decisions.
type Journal struct {
	Name   string
	number uint32 // of the next record
	last   uint64 // sequence number of the last message in the log
	prev   [sha256.Size]byte
	doubt  bool // an append was abandoned; the log may hold an unknown record
}

// Last returns the number of the last known message of the journal.
func (j *Journal) Last() uint64 { return j.last }

// Restart makes the next record number 0 of a new chain, which follows message last. 0: the journal is empty.
func (j *Journal) Restart(last uint64) { *j = Journal{Name: j.Name, last: last} }

// MustCatchUp reports whether an append was abandoned. The journal must then be read before the
// next write.
func (j *Journal) MustCatchUp() bool { return j.doubt }

// Message is a message as read from the log.
type Message struct {
	Seq  uint64
	Data []byte
}

// Verify decodes a message as the next record of the journal.
func (j *Journal) Verify(seq uint64, data []byte) (Record, error) {
	r, err := Decode(j.Name, data)
	switch {
	case err != nil:
		return r, fmt.Errorf("record %d of %s (message %d): %w", j.number, j.Name, seq, err)
	case r.Number != j.number:
		return r, fmt.Errorf("record %d of %s (message %d): %w: found record %d, the records between are missing",
			j.number, j.Name, seq, ErrDamaged, r.Number)
	case r.prev != j.prev:
		return r, fmt.Errorf("record %d of %s (message %d): %w: it does not follow the record before it", j.number, j.Name, seq, ErrDamaged)
	}
	j.applied(&r, seq)
	return r, nil
}

func (j *Journal) applied(r *Record, seq uint64) {
	j.number, j.prev, j.last = r.Number+1, r.sum, seq
}

// CatchUp applies messages beyond the known ones. It calls foreign for each record.
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

// Move is the next action that a Writing asks of its caller.
type Move uint8

// Moves. After each one the caller reports the result.
const (
	MoveAppend Move = iota // append Data after the journal's Last, then call Appended
	MoveRead               // read the messages after the journal's Last, then call Found
	MovePause              // wait for Pause or the end, then call Waited
	MoveEnd                // done: see Seq or Err
)

const (
	firstPause = 20 * time.Millisecond
	maxPause   = 2 * time.Second
)

// Writing is one record on its way to the end of a journal. An acknowledgement may be lost, so
// after an error the journal is read to see whether it holds the record. The same bytes are retried
// until then, or until the caller gives up.
type Writing struct {
	Data  []byte
	Pause time.Duration
	Seq   uint64 // sequence number of the stored message
	Err   error

	journal *Journal
	record  *Record
	refused error // error of the newest append
}

// Write starts writing r as the next record.
func (j *Journal) Write(r *Record) (*Writing, Move) {
	w := &Writing{journal: j, record: r, Pause: firstPause / 2}
	if len(r.Payload) > maxPayload {
		w.Err = fmt.Errorf("journal: a record of %d bytes for %s exceeds the limit of %d", len(r.Payload), j.Name, maxPayload)
		return w, MoveEnd
	}
	r.Number, r.prev = j.number, j.prev
	w.Data = r.Encode(j.Name)
	return w, MoveAppend
}

func (w *Writing) stored(seq uint64) Move {
	w.journal.doubt = false
	w.journal.applied(w.record, seq)
	w.Seq = seq
	return MoveEnd
}

// Appended reports the result of an append.
func (w *Writing) Appended(seq uint64, err error) Move {
	switch {
	case err == nil:
		return w.stored(seq)
	case errors.Is(err, ErrFull) && !w.journal.doubt: // certainly not stored
		w.Err = err
		return MoveEnd
	}
	w.journal.doubt, w.refused = true, err
	return MoveRead
}

// Found reports the messages that were read. It calls foreign for records of other processes.
func (w *Writing) Found(read []Message, err error, foreign func(*Record) error) Move {
	switch {
	case err == nil && len(read) > 0 && bytes.Equal(read[0].Data, w.Data):
		return w.stored(read[0].Seq)
	case err == nil && (errors.Is(w.refused, ErrConflict) || errors.Is(w.refused, ErrFull)):
		if w.Err = w.journal.CatchUp(read, foreign); w.Err == nil {
			w.Err = w.refused
		}
		return MoveEnd
	}
	w.Pause = min(2*w.Pause, maxPause)
	return MovePause
}

// Waited continues after a pause. ended means that the caller gives up. The record may be stored
// anyway, so the journal is then in doubt.
func (w *Writing) Waited(ended bool) Move {
	if ended {
		w.Err = w.refused
		return MoveEnd
	}
	return MoveAppend
}
