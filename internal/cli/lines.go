package cli

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"strings"

	"golang.org/x/term"
)

// lines reads lines from a person, with editing and history, or from a file or pipe. One
// read is under way at a time; a context ends the wait for it, not the read.
type lines struct {
	read   func() (string, error)
	prompt func(string) // for the next line
	stop   func()       // gives the terminal back as it was; may be called twice
	// history is what a person typed; nil where nobody types.
	history *history
}

// interrupted is the error of a read at which a person typed Ctrl-C. The line is discarded.
type interrupted struct{ text bool } // text: there was something on the line

func (interrupted) Error() string { return "interrupted" }

// interruptKey replaces Ctrl-C in the input of the line editor, which would end the input on
// Ctrl-C itself. The editor gives it to its callback, as it does any key that it has no use for.
const interruptKey = 0x1c

// keys reads a terminal, with each Ctrl-C as interruptKey and Enter.
type keys struct {
	from io.Reader
	rest []byte
	err  error
}

func (k *keys) Read(p []byte) (int, error) {
	if len(k.rest) == 0 && k.err == nil {
		buf := make([]byte, 256)
		n, err := k.from.Read(buf)
		k.rest, k.err = bytes.ReplaceAll(buf[:n], []byte{3}, []byte{interruptKey, '\r'}), err
	}
	n := copy(p, k.rest)
	if k.rest = k.rest[n:]; len(k.rest) > 0 {
		return n, nil
	}
	err := k.err
	k.err = nil
	return n, err
}

// maxLine bounds a line that is no terminal's.
const maxLine = 16 << 20

// newLines reads from e's standard input; the prompt is for a person only.
func newLines(e *env, prompt string) *lines {
	in, ok := e.stdin.(*os.File)
	if !ok || !isTerminal(in) || !isTerminal(e.stdout) {
		scan := bufio.NewScanner(e.stdin)
		scan.Buffer(nil, maxLine)
		return &lines{stop: func() {}, prompt: func(string) {}, read: func() (string, error) {
			if scan.Scan() {
				return scan.Text(), nil
			}
			if err := scan.Err(); err != nil {
				return "", err
			}
			return "", io.EOF
		}}
	}
	t := term.NewTerminal(struct {
		io.Reader
		io.Writer
	}{&keys{from: in}, e.stdout}, prompt)
	fd := int(in.Fd())
	before, err := term.GetState(fd)
	h := readHistory()
	t.History = h
	var stopped *interrupted
	t.AutoCompleteCallback = func(line string, _ int, key rune) (string, int, bool) {
		if key == interruptKey {
			stopped = &interrupted{line != ""}
		}
		return "", 0, key == interruptKey
	}
	l := &lines{history: h, prompt: t.SetPrompt, stop: func() {
		if err == nil {
			t.SetBracketedPasteMode(false)
			_ = term.Restore(fd, before) // the terminal may be gone
		}
	}}
	l.read = func() (string, error) {
		if _, err := term.MakeRaw(fd); err != nil {
			return "", err
		}
		defer l.stop()
		if w, h, err := term.GetSize(fd); err == nil && w > 0 {
			_ = t.SetSize(w, h) // an error of its own output, which ReadLine meets as well
		}
		t.SetBracketedPasteMode(true)
		stopped = nil
		h.startRead()
		var pasted strings.Builder // lines that were pasted are one, with what follows them
		for {
			text, err := t.ReadLine()
			if stopped != nil {
				stopped.text = stopped.text || pasted.Len() > 0
				return "", *stopped
			}
			pasted.WriteString(h.textOf(text))
			if !errors.Is(err, term.ErrPasteIndicator) {
				return pasted.String(), err
			}
			pasted.WriteByte('\n')
			if pasted.Len() > maxLine {
				return "", errors.New("what was pasted is too long")
			}
		}
	}
	return l
}

// next is the next line, io.EOF after the last one or a person's Ctrl-D, [interrupted] after
// Ctrl-C, or the context's error.
func (l *lines) next(ctx context.Context) (string, error) {
	return await(ctx, l.read, l.stop)
}

// await waits for a read until ctx ends. The read goes on then, and the process with it:
// nothing else ends a read of a terminal.
func await[T any](ctx context.Context, read func() (T, error), stop func()) (T, error) {
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
