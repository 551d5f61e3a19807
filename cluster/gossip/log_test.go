package gossip

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
)

// What memberlist writes comes one level lower, and what it says of a socket that this process
// has closed itself is nobody's trouble.
func TestLogLevels(t *testing.T) {
	var out bytes.Buffer
	w := &logWriter{log: slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelInfo}))}
	for _, line := range []string{
		"[ERR] memberlist: cannot send: no route to host",
		"[WARN] memberlist: refuted",
		"[INFO] memberlist: quiet",
		"[ERR] memberlist: cannot send: write udp: use of closed network connection",
	} {
		if _, err := w.Write([]byte(line + "\n")); err != nil {
			t.Fatal(err)
		}
	}
	got := out.String()
	if strings.Count(got, "\n") != 2 || !strings.Contains(got, "level=WARN") || !strings.Contains(got, "level=INFO") || strings.Contains(got, "closed") {
		t.Errorf("logged:\n%s", got)
	}
}
