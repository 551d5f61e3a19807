package cli

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// history is the messages that a person typed, also in earlier chats: those of a file, which
// only its owner reads, as long as it can be written. It is the line editor's history, where a
// message of several lines is one line with marks.
type history struct {
	path     string
	messages []string // the newest last
	recalled bool     // a message of several lines was brought back during this read
}

const (
	maxHistory = 1000
	// lineMark replaces the end of a line in a message that the editor recalls.
	lineMark = "⏎"
	// fileMark replaces it in the file, which has one message a line.
	fileMark = "\x1e"
)

// readHistory reads the messages of earlier chats; without a home there are none.
func readHistory() *history {
	home := stateHome()
	if home == "" {
		return &history{}
	}
	h := &history{path: filepath.Join(home, "shoal", "history")}
	text, err := readSmall(h.path)
	if err != nil {
		return h // the first chat
	}
	for line := range strings.Lines(string(text)) {
		h.messages = append(h.messages, strings.ReplaceAll(strings.TrimRight(line, "\n"), fileMark, "\n"))
	}
	if len(h.messages) > maxHistory { // the file grows by what is typed: cut it now and then
		h.messages = slices.Clone(h.messages[len(h.messages)-maxHistory:])
		var b strings.Builder
		for _, m := range h.messages {
			b.WriteString(inFile(m))
		}
		_ = os.WriteFile(h.path, []byte(b.String()), 0o600)
	}
	return h
}

// inFile is a message as the file has it.
func inFile(message string) string { return strings.ReplaceAll(message, "\n", fileMark) + "\n" }

// add adds a message. A nil history keeps none.
func (h *history) add(message string) {
	if h == nil || strings.TrimSpace(message) == "" || len(h.messages) > 0 && h.messages[len(h.messages)-1] == message {
		return
	}
	h.messages = append(h.messages, message)
	if h.path == "" || os.MkdirAll(filepath.Dir(h.path), 0o700) != nil {
		return
	}
	if f, err := os.OpenFile(h.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600); err == nil {
		_, _ = f.WriteString(inFile(message)) // a chat goes on without
		_ = f.Close()
	}
}

// begin starts a read.
func (h *history) startRead() { h.recalled = false }

// textOf is the text of a line that the editor returned.
func (h *history) textOf(line string) string {
	if !h.recalled {
		return line
	}
	return strings.ReplaceAll(line, lineMark, "\n")
}

// Add implements [term.History]. Its lines are parts of messages, which [history.keep] takes.
func (h *history) Add(string) {}

// Len implements [term.History].
func (h *history) Len() int { return len(h.messages) }

// At implements [term.History].
func (h *history) At(i int) string {
	m := h.messages[len(h.messages)-1-i]
	h.recalled = h.recalled || strings.Contains(m, "\n")
	return strings.ReplaceAll(m, "\n", lineMark)
}
