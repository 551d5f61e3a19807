package sessions

import (
	"fmt"

	"github.com/shoal-llm/shoal/internal/server/engine"
)

// State is the fold of a session's turns. Its slices only grow, so a copy stays valid.
type State struct {
	Head
	TTL      int64 // seconds
	Created  int64 // Unix milliseconds
	Used     int64 // when the last turn ended, Unix milliseconds
	Turns    int
	First    int     // tokens of the first prompt, which prefill reads. All others are decode rows
	IDs      []int32 // of all turns
	Messages []engine.Message
	Bytes    int64 // of the records
}

// accepts returns an error if a turn cannot be the next one.
func (s *State) accepts(t *Turn) error {
	switch {
	case s.Turns == 0 && t.Head == nil:
		return fmt.Errorf("%w: the first turn has no settings of the session", ErrRecord)
	case s.Turns > 0 && t.Head != nil:
		return fmt.Errorf("%w: turn %d has settings, which only the first turn may have", ErrRecord, s.Turns+1)
	}
	return t.check()
}

// Add adds a turn in its form on disk. An error leaves the state unchanged.
func (s *State) Add(id string, payload []byte, at int64) error {
	t, err := DecodeTurn(payload)
	if err != nil {
		return err
	}
	if t.Head != nil && ID(t.Head.Tenant, t.Head.Name) != id {
		return fmt.Errorf("%w: its settings belong to another session than %s", ErrRecord, id)
	}
	return s.Apply(&t, at, len(payload))
}

// Apply adds a turn that ended at a time, in a record of bytes. An error leaves the state unchanged.
func (s *State) Apply(t *Turn, at int64, bytes int) error {
	if err := s.accepts(t); err != nil {
		return err
	}
	if t.Head != nil {
		s.Head, s.Created, s.First = *t.Head, at, len(t.Prompt)
	}
	s.TTL, s.Used = t.TTL, at
	s.Turns++
	s.IDs = append(append(s.IDs, t.Prompt...), t.Output...)
	s.Messages = append(s.Messages, t.Messages...)
	s.Bytes += int64(bytes)
	return nil
}

// Ends returns the time at which the session is over unless it has another turn, in Unix milliseconds.
func (s *State) Ends() int64 { return s.Used + s.TTL*1000 }

// Ended is a session that was deleted.
type Ended struct {
	Tenant string `json:"tenant"`
	Name   string `json:"name"`
	Until  int64  `json:"until"` // the time at which it would have ended, Unix milliseconds
}

// End returns the record of a session that is deleted.
func (s *State) End() Ended { return Ended{s.Tenant, s.Name, s.Ends()} }
