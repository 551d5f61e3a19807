package store

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"
)

const eventsKey = "events"

// Events returns the log that any coordinator last wrote with StoreEvents; nil: none.
func (s *Store) Events(ctx context.Context) ([]byte, error) {
	e, err := s.election.bucket().Get(ctx, eventsKey)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("store: read the event log: %w", err)
	}
	return e.Value(), nil
}

// StoreEvents stores the event log next to the lease. The log is informational only, so the write is
// unconditional.
func (s *Store) StoreEvents(ctx context.Context, log []byte) error {
	if _, err := s.election.bucket().Put(ctx, eventsKey, log); err != nil {
		return fmt.Errorf("store: write the event log: %w", err)
	}
	return nil
}

// moveEvents copies the event log to another register before the lease moves there.
func (s *Store) moveEvents(ctx context.Context, to register) {
	log, err := s.Events(ctx)
	if b, ok := to.(*bucketRegister); ok && err == nil && log != nil {
		_, err = b.kv.Put(ctx, eventsKey, log)
	}
	if err != nil {
		s.log.Warn("the event log was not copied to the replicated store; the next event will copy it", "error", err)
	}
}

// bucket returns the bucket that currently holds the lease.
func (s *Election) bucket() jetstream.KeyValue {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reg.(*bucketRegister).kv
}
