// Package machine decides, for one socket, which messages of the coordinator take effect and which
// changes of its caches a plan requires. It is pure: it takes values and returns effects, which the
// socket's actor performs.
package machine

import (
	"errors"
	"fmt"
)

// Phase is the state of a socket.
//
//	idle -> loading -> loaded -> joining -> ready <-> stepping
//	  ^________________ retire ___________________________|
type Phase string

const (
	Idle     Phase = "idle"
	Loading  Phase = "loading"
	Loaded   Phase = "loaded"
	Joining  Phase = "joining"
	Ready    Phase = "ready"
	Stepping Phase = "stepping"
	Failed   Phase = "failed"  // the epoch is broken; a newer one must begin
	Stopped  Phase = "stopped" // final; Proto.Actor may still deliver messages
)

// Errors that callers distinguish.
var (
	ErrStaleEpoch = errors.New("socket: stale epoch")
	ErrWrongPhase = errors.New("socket: not possible now")
)

// State fences the socket: it records epoch, phase and steps. Every method either advances the state,
// or returns an error and changes nothing.
type State struct {
	Phase Phase
	Epoch uint32
	Step  uint64 // last step begun
}

// Load begins epoch. It may interrupt any phase of an older epoch.
func (s *State) Load(epoch uint32) error {
	if s.Phase == Stopped {
		return fmt.Errorf("%w: the socket has stopped", ErrWrongPhase)
	}
	if epoch <= s.Epoch && fenced {
		return fmt.Errorf("%w: asked to load epoch %d, at %d already", ErrStaleEpoch, epoch, s.Epoch)
	}
	*s = State{Phase: Loading, Epoch: epoch}
	return nil
}

// Loaded ends loading; it is refused when a newer epoch has begun meanwhile.
func (s *State) Loaded(epoch uint32, ok bool) error {
	return s.move(epoch, Loading, pick(ok, Loaded, Failed))
}

// Join begins to form the group.
func (s *State) Join(epoch uint32) error { return s.move(epoch, Loaded, Joining) }

func (s *State) Joined(epoch uint32, ok bool) error {
	return s.move(epoch, Joining, pick(ok, Ready, Failed))
}

// Begin starts a step. Steps of an epoch are numbered upwards.
func (s *State) Begin(epoch uint32, step uint64) error {
	if epoch == s.Epoch && (s.Phase == Ready || s.Phase == Stepping) && step <= s.Step {
		return fmt.Errorf("%w: step %d was begun already, at %d", ErrStaleEpoch, step, s.Step)
	}
	if err := s.move(epoch, Ready, Stepping); err != nil {
		return err
	}
	s.Step = step
	return nil
}

// End closes a step; after a failed one the epoch is over for this socket.
func (s *State) End(epoch uint32, ok bool) error {
	return s.move(epoch, Stepping, pick(ok, Ready, Failed))
}

// Retire leaves an epoch, and returns true if the socket must free its memory. An idle socket records
// the number too, so that late messages of earlier epochs are stale.
func (s *State) Retire(epoch uint32) bool {
	if s.Phase == Stopped || epoch < s.Epoch && fenced {
		return false
	}
	busy := s.Phase != Idle
	*s = State{Phase: Idle, Epoch: epoch}
	return busy
}

// Stop makes every further call an error.
func (s *State) Stop() { s.Phase = Stopped }

func (s *State) move(epoch uint32, from, to Phase) error {
	switch {
	case epoch != s.Epoch && fenced:
		return fmt.Errorf("%w: message of epoch %d, at %d", ErrStaleEpoch, epoch, s.Epoch)
	case s.Phase != from:
		return fmt.Errorf("%w: epoch %d is %s, not %s", ErrWrongPhase, epoch, s.Phase, from)
	}
	s.Phase = to
	return nil
}

func pick(ok bool, yes, no Phase) Phase {
	if ok {
		return yes
	}
	return no
}
