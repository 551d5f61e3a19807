package rpc

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"

	"google.golang.org/grpc/grpclog"
)

// demote lowers each level by one: Proto.Actor logs a disconnected peer as an error, which is a
// warning here, and its info messages are debug messages.
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
	if strings.HasPrefix(r.Message, "Endpoint") { // a peer disconnected: watch.go reports which one
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

// restorer re-enables grpc's logger. Remote.Start silences grpc's global logger, which has no lock,
// and then starts a goroutine that reads it. The only safe moment in between is when Start logs its
// first line.
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

// isPowerOfTwo reports whether n is a power of two. Logging only then keeps untrusted clients from
// flooding the log.
func isPowerOfTwo(n uint64) bool { return n&(n-1) == 0 }

// grpcLog forwards grpc's warnings as debug messages and its errors as warnings to the logger of
// the System that started last.
type grpcLog struct{ to atomic.Pointer[slog.Logger] }

func (g *grpcLog) log(level slog.Level, text string) {
	g.to.Load().Log(context.Background(), level, text)
}

func (g *grpcLog) Info(...any)                 {}
func (g *grpcLog) Infoln(...any)               {}
func (g *grpcLog) Infof(string, ...any)        {}
func (g *grpcLog) Warning(a ...any)            { g.log(slog.LevelDebug, fmt.Sprint(a...)) }
func (g *grpcLog) Warningln(a ...any)          { g.log(slog.LevelDebug, fmt.Sprint(a...)) }
func (g *grpcLog) Warningf(f string, a ...any) { g.log(slog.LevelDebug, fmt.Sprintf(f, a...)) }
func (g *grpcLog) Error(a ...any)              { g.log(slog.LevelWarn, fmt.Sprint(a...)) }
func (g *grpcLog) Errorln(a ...any)            { g.log(slog.LevelWarn, fmt.Sprint(a...)) }
func (g *grpcLog) Errorf(f string, a ...any)   { g.log(slog.LevelWarn, fmt.Sprintf(f, a...)) }
func (g *grpcLog) Fatal(a ...any)              { panic("grpc: " + fmt.Sprint(a...)) }
func (g *grpcLog) Fatalln(a ...any)            { panic("grpc: " + fmt.Sprint(a...)) }
func (g *grpcLog) Fatalf(f string, a ...any)   { panic("grpc: " + fmt.Sprintf(f, a...)) }
func (g *grpcLog) V(int) bool                  { return false }
