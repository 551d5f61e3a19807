package batcher

import (
	"context"
	"io"
	"sync"
)

// Event is one event of a request. Exactly one field is set.
type Event struct {
	Scores []PromptLogprob
	Emit   *Emit
	Finish *Finish
}

// Stream is a Sink that a reader drains at its own pace. It never blocks the batcher: unread events
// are kept, and their number is bounded by the request's max_tokens.
type Stream struct {
	mu     sync.Mutex
	events []Event
	ready  chan struct{} // holds a token while there may be something to read
	over   bool          // Finish was added
}

func NewStream() *Stream { return &Stream{ready: make(chan struct{}, 1)} }

func (s *Stream) Scores(prompt []PromptLogprob) { s.put(Event{Scores: prompt}) }
func (s *Stream) Emit(e Emit)                   { s.put(Event{Emit: &e}) }
func (s *Stream) Finish(f Finish)               { s.put(Event{Finish: &f}) }

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

// gatedSink passes nothing on if its caller gave up before it was known that the request was accepted.
type gatedSink struct {
	mu     sync.Mutex
	closed bool
	sink   Sink
}

func (g *gatedSink) shut() {
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
}

func (g *gatedSink) pass(f func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.closed {
		f()
	}
}

func (g *gatedSink) Scores(p []PromptLogprob) { g.pass(func() { g.sink.Scores(p) }) }
func (g *gatedSink) Emit(e Emit)              { g.pass(func() { g.sink.Emit(e) }) }
func (g *gatedSink) Finish(f Finish)          { g.pass(func() { g.sink.Finish(f) }) }
