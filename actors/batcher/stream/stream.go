// Package stream stores the events of a request until its reader takes them.
package stream

import (
	"context"
	"io"
	"sync"

	"github.com/shoal-llm/shoal/actors/batcher/report"
)

// Sink receives the events of one request, in order. The batcher's goroutine calls it, so it must not
// block. No call follows Finish. Stream is a Sink.
type Sink interface {
	Scores(prompt []report.PromptLogprob)
	Emit(e report.Emit)
	Finish(f report.Finish)
}

// Event is one event of a request. Exactly one field is set.
type Event struct {
	Scores []report.PromptLogprob
	Emit   *report.Emit
	Finish *report.Finish
}

// Stream is a Sink that a reader drains at its own pace. It never blocks the batcher: unread events
// are kept, and their number is bounded by the request's max_tokens.
type Stream struct {
	mu     sync.Mutex
	events []Event
	ready  chan struct{} // holds a token while there may be something to read
	over   bool          // Finish was added
}

// New returns an empty stream.
func New() *Stream { return &Stream{ready: make(chan struct{}, 1)} }

func (s *Stream) Scores(prompt []report.PromptLogprob) { s.put(Event{Scores: prompt}) }
func (s *Stream) Emit(e report.Emit)                   { s.put(Event{Emit: &e}) }
func (s *Stream) Finish(f report.Finish)               { s.put(Event{Finish: &f}) }

func (s *Stream) put(e Event) {
	s.mu.Lock()
	s.events = append(s.events, e)
	s.over = s.over || e.Finish != nil
	s.mu.Unlock()
	s.wake()
}

func (s *Stream) wake() {
	select {
	case s.ready <- struct{}{}:
	default:
	}
}

// Next waits for the next event; io.EOF after the Finish. One reader at a time.
func (s *Stream) Next(ctx context.Context) (Event, error) {
	for {
		s.mu.Lock()
		if len(s.events) > 0 {
			e := s.events[0]
			s.events[0] = Event{}
			s.events = s.events[1:]
			s.mu.Unlock()
			return e, nil
		}
		over := s.over
		s.mu.Unlock()
		if over {
			return Event{}, io.EOF
		}
		select {
		case <-s.ready:
		case <-ctx.Done():
			return Event{}, ctx.Err()
		}
	}
}

// Gate is a Sink that drops all events after Close, for a caller that left before the request was
// accepted.
type Gate struct {
	Sink   Sink
	mu     sync.Mutex
	closed bool
}

// Close closes the gate.
func (g *Gate) Close() {
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
}

func (g *Gate) pass(f func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.closed {
		f()
	}
}

func (g *Gate) Scores(p []report.PromptLogprob) { g.pass(func() { g.Sink.Scores(p) }) }
func (g *Gate) Emit(e report.Emit)              { g.pass(func() { g.Sink.Emit(e) }) }
func (g *Gate) Finish(f report.Finish)          { g.pass(func() { g.Sink.Finish(f) }) }
