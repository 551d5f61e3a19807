package natsbus

import (
	"context"
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"sync/atomic"
	"time"

	"github.com/shoal-llm/shoal/internal/lograte"
)

// serverLog converts the server's log to slog records. Its notices are start-up details, so they
// become debug records.
type serverLog struct {
	log    *slog.Logger
	rate   *lograte.Limiter        // unknown clients can connect and cause lines
	fatal  *atomic.Pointer[string] // reason why the server ended, or nil
	broken *atomic.Pointer[string] // reason why JetStream stopped writing, or nil
}

func (l serverLog) write(level slog.Level, format string, v []any) {
	if ctx := context.Background(); l.log.Enabled(ctx, level) {
		if ok, leftOut, last := l.rate.Allow(lograte.Kind(format), time.Now()); ok {
			l.log.Log(ctx, level, "nats: "+fmt.Sprintf(format, v...), lograte.Attrs(leftOut, last)...)
		}
	}
}

func (l serverLog) Noticef(format string, v ...any) { l.write(slog.LevelDebug, format, v) }
func (l serverLog) Warnf(format string, v ...any) {
	switch {
	case strings.HasPrefix(format, "Maximum payloads over"):
		return // expected: a chunk of a tensor is one message
	case strings.Contains(format, "DO NOT USE IN PRODUCTION"):
		return // about certificates not checked by host name: security checks them against the cluster key
	}
	l.write(slog.LevelDebug, format, v) // about failed logins, elections and snapshots: the store reports lasting faults
}

func (l serverLog) Fatalf(format string, v ...any) {
	why := fmt.Sprintf(format, v...)
	l.fatal.CompareAndSwap(nil, &why)
	l.write(slog.LevelError, format, v)
}

func (l serverLog) Errorf(format string, v ...any) {
	if broken(format) {
		why := fmt.Sprintf(format, v...)
		l.broken.CompareAndSwap(nil, &why)
	}
	l.write(levelOf(format), format, v)
}

// ofConnection matches the prefix of lines about one connection.
var ofConnection = regexp.MustCompile(` - [crglm]id:\d+ - `)

// levelOf returns the level of an error. Errors of single connections and of routes to lost peers are
// for debugging: unauthenticated peers cause them too, and other packages report lost peers.
func levelOf(format string) slog.Level {
	if ofConnection.MatchString(format) || strings.HasPrefix(format, "Error trying to connect to route") {
		return slog.LevelDebug
	}
	return slog.LevelWarn
}

func (l serverLog) Debugf(format string, v ...any) { l.write(slog.LevelDebug-4, format, v) }
func (l serverLog) Tracef(format string, v ...any) { l.write(slog.LevelDebug-8, format, v) }
