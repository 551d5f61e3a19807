package cli

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// history is the lines that a person typed, also in earlier chats: those of a file, which
// only its owner reads, as long as it can be written.
type history struct {
	path  string
	lines []string // the newest last
}

const maxHistory = 1000

// readHistory reads the lines of earlier chats; without a home there are none.
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
		h.lines = append(h.lines, strings.TrimRight(line, "\n"))
	}
	if len(h.lines) > maxHistory { // the file grows by what is typed: cut it now and then
		h.lines = slices.Clone(h.lines[len(h.lines)-maxHistory:])
		_ = os.WriteFile(h.path, []byte(strings.Join(h.lines, "\n")+"\n"), 0o600)
	}
	return h
}

func (h *history) Add(line string) {
	if strings.TrimSpace(line) == "" || len(h.lines) > 0 && h.lines[len(h.lines)-1] == line {
		return
	}
	h.lines = append(h.lines, line)
	if h.path == "" || os.MkdirAll(filepath.Dir(h.path), 0o700) != nil {
		return
	}
	if f, err := os.OpenFile(h.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600); err == nil {
		_, _ = f.WriteString(line + "\n") // a chat goes on without
		_ = f.Close()
	}
}

func (h *history) Len() int { return len(h.lines) }

func (h *history) At(i int) string { return h.lines[len(h.lines)-1-i] }
