package cli

import (
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/shoal-llm/shoal/internal/cli/launch"
	"github.com/shoal-llm/shoal/internal/cli/ui"
)

// history holds the messages of this chat and of earlier ones. A file stores them if it can be
// written, and only its owner can read it. The type is the history of the line editor. There, a
// message of several lines is one line with marks.
type history struct {
	path     string
	messages []string // newest last
	recalled bool     // this read has recalled a message of several lines
}

const (
	maxHistory = 1000
	// lineMark replaces a line break in a message that the editor recalls.
	lineMark = "⏎"
	// fileMark replaces a line break in the file, which has one message per line.
	fileMark = "\x1e"
)

// readHistory reads the messages of earlier chats. Without a home directory there are none.
func readHistory() *history {
	home := launch.StateHome()
	if home == "" {
		return &history{}
	}
	h := &history{path: filepath.Join(home, "shoal", "history")}
	text, err := ui.ReadSmall(h.path)
	if err != nil {
		return h // the first chat
	}
	for line := range strings.Lines(string(text)) {
		h.messages = append(h.messages, strings.ReplaceAll(strings.TrimRight(line, "\n"), fileMark, "\n"))
	}
	if len(h.messages) > maxHistory { // the file grows with every message: truncate it
		h.messages = slices.Clone(h.messages[len(h.messages)-maxHistory:])
		var b strings.Builder
		for _, m := range h.messages {
			b.WriteString(inFile(m))
		}
		_ = os.WriteFile(h.path, []byte(b.String()), 0o600)
	}
	return h
}

// inFile returns the line of the file for a message.
func inFile(message string) string { return strings.ReplaceAll(message, "\n", fileMark) + "\n" }

// add stores a message. A nil history ignores it.
func (h *history) add(message string) {
	if h == nil || strings.TrimSpace(message) == "" || len(h.messages) > 0 && h.messages[len(h.messages)-1] == message {
		return
	}
	h.messages = append(h.messages, message)
	if h.path == "" || os.MkdirAll(filepath.Dir(h.path), 0o700) != nil {
		return
	}
	if f, err := os.OpenFile(h.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600); err == nil {
		_, _ = f.WriteString(inFile(message)) // a chat works without the file
		_ = f.Close()
	}
}

// startRead prepares for the next message.
func (h *history) startRead() { h.recalled = false }

// textOf returns the message for a line of the editor.
func (h *history) textOf(line string) string {
	if !h.recalled {
		return line
	}
	return strings.ReplaceAll(line, lineMark, "\n")
}

// Add implements [term.History]. It ignores the lines of the editor, since they are parts of messages; see [history.add].
func (h *history) Add(string) {}

// Len implements [term.History].
func (h *history) Len() int { return len(h.messages) }

// At implements [term.History].
func (h *history) At(i int) string {
	m := h.messages[len(h.messages)-1-i]
	h.recalled = h.recalled || strings.Contains(m, "\n")
	return strings.ReplaceAll(m, "\n", lineMark)
}
