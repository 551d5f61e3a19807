package gossip

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
)

// memberlist's log lines become debug lines.
func TestLogLevels(t *testing.T) {
	for _, c := range []struct {
		level slog.Level
		lines int
	}{{slog.LevelInfo, 0}, {slog.LevelDebug, 2}} {
		var out bytes.Buffer
		w := &logWriter{log: slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: c.level}))}
		for _, line := range []string{
			"[ERR] memberlist: Failed fallback TCP ping: timeout 200ms: read tcp: i/o timeout",
			"[WARN] memberlist: discarding stream with unacceptable label",
			"[INFO] memberlist: quiet",
			"[DEBUG] memberlist: Stream connection from=127.0.0.1:1",
		} {
			if _, err := w.Write([]byte(line + "\n")); err != nil {
				t.Fatal(err)
			}
		}
		if got := out.String(); strings.Count(got, "level=DEBUG ") != c.lines ||
			strings.Count(got, "\n") != c.lines || strings.Contains(got, "[ERR]") {
			t.Errorf("at %v: logged:\n%s", c.level, got)
		}
	}
}
