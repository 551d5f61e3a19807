package journal

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	askLimit      = 3 * time.Second // one request: while a leader is elected it is lost
	askPause      = 100 * time.Millisecond
	askAltogether = 2 * time.Minute
)

type silenceKey struct{}

// Hurried is ctx for a client's request: a log that gives no answer is asked for so long,
// not for as long as those who run jobs ask.
func Hurried(ctx context.Context, limit time.Duration) context.Context {
	return context.WithValue(ctx, silenceKey{}, limit)
}

// Silence is how long ctx waits for one answer, long where nobody hurries.
func Silence(ctx context.Context, long time.Duration) time.Duration {
	if limit, ok := ctx.Value(silenceKey{}).(time.Duration); ok {
		return limit
	}
	return long
}

// again asks until there is an answer: what is asked while the log's leader is
// being elected is lost, and nobody says so.
func again(ctx context.Context, ask func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, Silence(ctx, askAltogether))
	defer cancel()
	for {
		try, cancel := context.WithTimeout(ctx, askLimit)
		err := ask(try)
		late := try.Err() != nil
		cancel()
		if err == nil || ctx.Err() != nil || !late && !leaderless(err) {
			return err
		}
		t := time.NewTimer(askPause)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return err
		}
	}
}

// leaderless says that an answer was given by a server that knows of no leader yet.
func leaderless(err error) bool {
	var api *jetstream.APIError
	return errors.Is(err, nats.ErrNoResponders) || errors.Is(err, nats.ErrTimeout) || errors.As(err, &api) && api.Code == 503
}

// silent is the error of a log that gave no answer.
type silent struct {
	copies int
	err    error
}

func (s *silent) Error() string { return s.err.Error() }
func (s *silent) Unwrap() error { return s.err }

func unanswered(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || leaderless(err)
}

// Reason words for a client what the log said, or that it said nothing.
func Reason(err error) string {
	why := strings.TrimPrefix(err.Error(), "jobs: ")
	if !unanswered(err) {
		return why
	}
	why = "the job store does not answer (" + why + "). "
	if s := (*silent)(nil); errors.As(err, &s) && s.copies == 1 {
		return why + "It has one copy, on the disk of the coordinator, which is full or failing: its log says which. What it holds is kept, and it goes on by itself once the disk takes something again"
	}
	return why + "A replicated one does while two of the three processes that keep it are up and reach each other; store.json in its data directory names them. What it holds is kept: try again when they are back"
}
