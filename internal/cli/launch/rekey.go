package launch

import (
	"errors"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/shoal-llm/shoal/internal/cli/ui"
	"github.com/shoal-llm/shoal/internal/security"
	"github.com/shoal-llm/shoal/internal/supervise"
)

// passHangup forwards SIGHUP to the processes of a local cluster until the caller calls stop.
func passHangup(e *ui.Env, all ...*supervise.Children) (stop func()) {
	return onHangup(e, func() {
		for _, c := range all {
			c.Signal(syscall.SIGHUP)
		}
	})
}

// ignoreHangup ignores SIGHUP until onHangup or openSettings handles it, which may be minutes after the start: a model
// is pulled first. Without it the signal would end the process, and systemd would not start it again.
func ignoreHangup(e *ui.Env) {
	if !ui.IsTerminal(e.Stdin) {
		signal.Ignore(syscall.SIGHUP)
	}
}

// onHangup calls f on each SIGHUP until the caller calls stop. At a terminal it does nothing:
// there SIGHUP means that the terminal is gone, and ends the program.
func onHangup(e *ui.Env, f func()) (stop func()) {
	if ui.IsTerminal(e.Stdin) {
		return func() {}
	}
	hup, quit, done := make(chan os.Signal, 1), make(chan struct{}), make(chan struct{})
	signal.Notify(hup, syscall.SIGHUP)
	go func() {
		defer close(done)
		for {
			select {
			case <-hup:
				f()
			case <-quit:
				return
			}
		}
	}()
	return func() {
		signal.Stop(hup)
		close(quit)
		<-done
	}
}

// rereadKey reloads the file of the cluster key on each SIGHUP, until the returned
// function is called.
func rereadKey(e *ui.Env, key security.Key, log *slog.Logger) (stop func()) {
	if key.IsZero() {
		return func() {}
	}
	return onHangup(e, func() {
		switch err := key.Reload(); {
		case errors.Is(err, security.ErrNoFile):
		case err != nil:
			log.Error("cluster key not reloaded; the previous keys stay in use", "error", err)
		default:
			log.Info("cluster key file read", "keys", strings.Join(key.Fingerprints(), ", "))
		}
	})
}
