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
	requestTimeout = 3 * time.Second // of one request; requests during a leader election are lost
	retryPause     = 100 * time.Millisecond
	retryLimit     = 2 * time.Minute
)

type answerTimeoutKey struct{}

// WithAnswerTimeout returns a context for a client's request. The log's answers are awaited for at
// most limit, instead of the long timeout of the job runner.
func WithAnswerTimeout(ctx context.Context, limit time.Duration) context.Context {
	return context.WithValue(ctx, answerTimeoutKey{}, limit)
}

// AnswerTimeout returns how long to wait for one answer under ctx: the limit of WithAnswerTimeout,
// else long.
func AnswerTimeout(ctx context.Context, long time.Duration) time.Duration {
	if limit, ok := ctx.Value(answerTimeoutKey{}).(time.Duration); ok {
		return limit
	}
	return long
}

// retry repeats ask until it gets an answer. Requests during a leader election are lost without an
// error.
func retry(ctx context.Context, ask func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, AnswerTimeout(ctx, retryLimit))
	defer cancel()
	for {
		try, cancel := context.WithTimeout(ctx, requestTimeout)
		err := ask(try)
		late := try.Err() != nil
		cancel()
		if err == nil || ctx.Err() != nil || !late && !leaderless(err) {
			return err
		}
		t := time.NewTimer(retryPause)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return err
		}
	}
}

// leaderless reports whether the error comes from a server without a leader.
func leaderless(err error) bool {
	var api *jetstream.APIError
	return errors.Is(err, nats.ErrNoResponders) || errors.Is(err, nats.ErrTimeout) || errors.As(err, &api) && api.Code == 503
}

// noAnswerError is the error of a log that gave no answer.
type noAnswerError struct {
	copies int
	err    error
}

func (s *noAnswerError) Error() string { return s.err.Error() }
func (s *noAnswerError) Unwrap() error { return s.err }

// Is makes the error an ErrNoAnswer.
func (s *noAnswerError) Is(target error) bool { return target == ErrNoAnswer }

func unanswered(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || leaderless(err)
}

// Reason words an error of the log for a client, including a missing answer.
func Reason(err error) string {
	why := strings.TrimPrefix(err.Error(), "jobs: ")
	if !unanswered(err) {
		return why
	}
	why = "the job store does not answer (" + why + "). "
	if s := (*noAnswerError)(nil); errors.As(err, &s) && s.copies == 1 {
		return why + "It has one copy, on the coordinator's disk, which is full or failing (see the coordinator's log). Stored jobs are kept, " +
			"and the store resumes by itself once the disk accepts writes"
	}
	return why + "A replicated store answers while two of its three processes are up and connected; store.json in the data directory names " +
		"them. Stored jobs are kept: try again once the processes are back"
}
