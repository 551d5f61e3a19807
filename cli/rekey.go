package cli

import (
	"errors"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"shoal/security"
)

// rereadKey reads the file of the cluster key again on each SIGHUP, until the returned
// function is called.
func rereadKey(e *env, key security.Key, log *slog.Logger) (stop func()) {
	if isTerminal(e.stdin) || key.IsZero() { // SIGHUP then tells that the terminal is gone
		return func() {}
	}
	hup, quit, done := make(chan os.Signal, 1), make(chan struct{}), make(chan struct{})
	signal.Notify(hup, syscall.SIGHUP)
	go func() {
		defer close(done)
		for {
			select {
			case <-hup:
			case <-quit:
				return
			}
			switch err := key.Reload(); {
			case errors.Is(err, security.ErrNoFile):
			case err != nil:
				log.Error("the cluster key was not read again; the keys are those of before", "error", err)
			default:
				log.Info("cluster key file read", "keys", strings.Join(key.Fingerprints(), ", "))
			}
		}
	}()
	return func() {
		signal.Stop(hup)
		close(quit)
		<-done
	}
}
