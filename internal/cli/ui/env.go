package ui

import (
	"context"
	"fmt"
	"io"
	"strings"
)

// Env holds the context, the standard streams and the signals of a command.
type Env struct {
	Ctx    context.Context
	Stdin  io.Reader
	Stdout io.Writer
	Stderr io.Writer
	// Interrupts handle Ctrl-C; nil if the command gets none.
	Interrupts *Interrupts
}

// Quiet returns an env without input and output.
func Quiet(ctx context.Context) *Env {
	return &Env{Ctx: ctx, Stdin: strings.NewReader(""), Stdout: io.Discard, Stderr: io.Discard}
}

// With returns e with another context, and no handlers of interrupts.
func (e *Env) With(ctx context.Context) *Env {
	return &Env{Ctx: ctx, Stdin: e.Stdin, Stdout: e.Stdout, Stderr: e.Stderr}
}

// Exit ends a command with a status and no further message.
type Exit int

func (e Exit) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

// PlainError returns the text of an error without a leading package name.
func PlainError(err error) string {
	text := err.Error()
	for _, name := range []string{"bench", "client", "cluster", "eval", "hub", "join", "security", "topology"} {
		if rest, ok := strings.CutPrefix(text, name+": "); ok {
			return rest
		}
	}
	return text
}

// Await waits for a read until ctx ends, and then calls stop. The read itself continues until
// the process ends, since a read of a terminal cannot be cancelled.
func Await[T any](ctx context.Context, read func() (T, error), stop func()) (T, error) {
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	go func() {
		v, err := read()
		done <- result{v, err}
	}()
	select {
	case r := <-done:
		return r.value, r.err
	case <-ctx.Done():
		stop()
		var none T
		return none, ctx.Err()
	}
}
