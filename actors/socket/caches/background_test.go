package caches

import (
	"errors"
	"testing"

	"github.com/shoal-llm/shoal/actors/layer/executor"
)

// A job that has not begun when the background ends does not run later. One that runs is waited for.
func TestOnExecutorEnds(t *testing.T) {
	exec := executor.New()
	defer exec.Close()
	b := newBackground(exec, nil)
	begun, proceed := make(chan struct{}), make(chan struct{})
	running, waiting := make(chan error, 1), make(chan error, 1)
	go func() { running <- b.onExecutor(func() error { close(begun); <-proceed; return errGone }) }()
	<-begun
	ran := false
	go func() { waiting <- b.onExecutor(func() error { ran = true; return nil }) }()
	close(b.quit)
	if err := <-waiting; !errors.Is(err, errEvicted) {
		t.Errorf("a job that has not begun: %v", err)
	}
	select {
	case err := <-running:
		t.Errorf("a job that runs is not waited for: %v", err)
	default:
	}
	close(proceed)
	if err := <-running; !errors.Is(err, errGone) {
		t.Errorf("a job that ran: %v", err)
	}
	last := make(chan struct{})
	exec.Submit(func() { close(last) })
	if <-last; ran {
		t.Error("a job ran after its caller had given it up")
	}
}
