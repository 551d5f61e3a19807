package rpc

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"

	"google.golang.org/grpc/grpclog"
)

// demote lowers each level by one step: what Proto.Actor calls an error (a
// peer hung up) is a warning here, its information is for debugging.
type demote struct {
	slog.Handler
	restore *restorer
}

func (d demote) Enabled(ctx context.Context, l slog.Level) bool {
	d.restore.once()
	return d.Handler.Enabled(ctx, l-4)
}

func (d demote) Handle(ctx context.Context, r slog.Record) error {
	r.Level -= 4
	if strings.HasPrefix(r.Message, "Endpoint") { // a peer hung up: watch.go reports who is gone
		r.Level = min(r.Level, slog.LevelDebug)
	}
	if !d.Handler.Enabled(ctx, r.Level) {
		return nil
	}
	return d.Handler.Handle(ctx, r)
}

func (d demote) WithAttrs(a []slog.Attr) slog.Handler {
	return demote{d.Handler.WithAttrs(a), d.restore}
}

func (d demote) WithGroup(n string) slog.Handler { return demote{d.Handler.WithGroup(n), d.restore} }

// restorer gives grpc a voice again. Remote.Start silences grpc's global
// logger, which has no lock, and then starts a goroutine that reads it. The one
// moment in between that is ours is when Start says that it is starting: the
// first line it logs.
type restorer struct {
	armed atomic.Bool
	to    *slog.Logger
}

func (r *restorer) once() {
	if r.armed.CompareAndSwap(true, false) {
		grpcLogger.to.Store(r.to.With("component", "grpc"))
		grpclog.SetLoggerV2(&grpcLogger)
	}
}

var grpcLogger grpcLog

// seldom is true for the first of many, and then at each doubling: strangers
// must not be able to fill the log.
func seldom(n uint64) bool { return n&(n-1) == 0 }

// grpcLog passes on grpc's warnings, for debugging, and errors, as warnings, to
// the logger of the System that started last.
type grpcLog struct{ to atomic.Pointer[slog.Logger] }

func (g *grpcLog) say(level slog.Level, text string) {
	g.to.Load().Log(context.Background(), level, text)
}

func (g *grpcLog) Info(...any)                 {}
func (g *grpcLog) Infoln(...any)               {}
func (g *grpcLog) Infof(string, ...any)        {}
func (g *grpcLog) Warning(a ...any)            { g.say(slog.LevelDebug, fmt.Sprint(a...)) }
func (g *grpcLog) Warningln(a ...any)          { g.say(slog.LevelDebug, fmt.Sprint(a...)) }
func (g *grpcLog) Warningf(f string, a ...any) { g.say(slog.LevelDebug, fmt.Sprintf(f, a...)) }
func (g *grpcLog) Error(a ...any)              { g.say(slog.LevelWarn, fmt.Sprint(a...)) }
func (g *grpcLog) Errorln(a ...any)            { g.say(slog.LevelWarn, fmt.Sprint(a...)) }
func (g *grpcLog) Errorf(f string, a ...any)   { g.say(slog.LevelWarn, fmt.Sprintf(f, a...)) }
func (g *grpcLog) Fatal(a ...any)              { panic("grpc: " + fmt.Sprint(a...)) }
func (g *grpcLog) Fatalln(a ...any)            { panic("grpc: " + fmt.Sprint(a...)) }
func (g *grpcLog) Fatalf(f string, a ...any)   { panic("grpc: " + fmt.Sprintf(f, a...)) }
func (g *grpcLog) V(int) bool                  { return false }
