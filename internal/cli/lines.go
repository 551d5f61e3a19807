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

	"github.com/shoal-llm/shoal/internal/cli/ui"
)

// lines reads lines from a terminal, with editing and history, or from a file or pipe. Only one
// read runs at a time. A context ends the wait for a read, not the read itself.
type lines struct {
	read   func() (string, error)
	prompt func(string) // sets the prompt of the next line
	stop   func()       // restores the terminal; safe to call twice
	// history holds the typed messages; nil if the input is not a terminal.
	history *history
}

// interrupted is the error of a read that Ctrl-C ended. The line is discarded.
type interrupted struct{ text bool } // text: the line was not empty

func (interrupted) Error() string { return "interrupted" }

// interruptKey replaces Ctrl-C in the input of the line editor, which would end the input at
// Ctrl-C. The editor passes it to its callback, as every key without a function.
const interruptKey = 0x1c

// keys reads a terminal and replaces each Ctrl-C with interruptKey and Enter.
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

// maxLine is the maximum length in bytes of a line or of a pasted text.
const maxLine = 16 << 20

// newLines reads from the standard input of e. Only a terminal shows the prompt.
func newLines(e *ui.Env, prompt string) *lines {
	in, ok := e.Stdin.(*os.File)
	if !ok || !ui.IsTerminal(in) || !ui.IsTerminal(e.Stdout) {
		scan := bufio.NewScanner(e.Stdin)
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
	}{&keys{from: in}, e.Stdout}, prompt)
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
			_ = t.SetSize(w, h) // ReadLine reports an error of the output as well
		}
		t.SetBracketedPasteMode(true)
		stopped = nil
		h.startRead()
		var pasted strings.Builder // pasted lines and the rest of the last line are one message
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
				return "", errors.New("the pasted text is too long; the limit is 16 MiB")
			}
		}
	}
	return l
}

// next returns the next line. Its error is io.EOF after the last line or Ctrl-D, [interrupted]
// after Ctrl-C, or the error of the context.
func (l *lines) next(ctx context.Context) (string, error) {
	return ui.Await(ctx, l.read, l.stop)
}
