package store

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"
)

const eventsKey = "events"

// Events is what KeepEvents wrote last, by whichever coordinator; nil: nothing.
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

// KeepEvents writes the event log beside the lease. It is for people to read: nothing rests
// on it, so it is written over without asking what is there.
func (s *Store) KeepEvents(ctx context.Context, log []byte) error {
	if _, err := s.election.bucket().Put(ctx, eventsKey, log); err != nil {
		return fmt.Errorf("store: write the event log: %w", err)
	}
	return nil
}

// moveEvents copies the event log to another register, before the lease moves there.
func (s *Store) moveEvents(ctx context.Context, to register) {
	log, err := s.Events(ctx)
	if b, ok := to.(*bucketRegister); ok && err == nil && log != nil {
		_, err = b.kv.Put(ctx, eventsKey, log)
	}
	if err != nil {
		s.log.Warn("the event log was not replicated; it is when the next event is written", "error", err)
	}
}

// bucket is the one that holds the lease now.
func (s *Election) bucket() jetstream.KeyValue {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reg.(*bucketRegister).kv
}
