package store

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/shoal-llm/shoal/internal/options"
)

const (
	// portLimit limits the wait for the port of a replica: an ending process may still use it, or
	// the interface may not be up yet after boot.
	portLimit       = time.Minute
	portTry         = 200 * time.Millisecond
	portLogInterval = 10 * time.Second
)

// awaitPort waits until this process can listen at its address in the list of members.
func awaitPort(ctx context.Context, at string, log *slog.Logger) error {
	ctx, cancel := context.WithTimeout(ctx, portLimit)
	defer cancel()
	const todo = "end the process that listens there, which `ss -ltnp` names"
	began, logged := time.Now(), time.Time{}
	for {
		l, err := net.Listen("tcp", at)
		if err == nil {
			return l.Close()
		}
		if time.Since(logged) > portLogInterval {
			log.Warn("waiting for the port of this process's copy of the store", "address", at, "error", err, "for", portLimit, "do", todo)
			logged = time.Now()
		}
		select {
		case <-time.After(portTry):
		case <-ctx.Done():
			return fmt.Errorf("store: the copy of the store in this "+options.Name("data-dir")+
				" is known to its other members at %s, where this process could not listen for %v: %w; %s", at,
				time.Since(began).Round(time.Second), err, todo)
		}
	}
}
