package journal

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// A server without a leader answers 503, which is retried. Other errors are returned.
func TestRetryWithoutLeader(t *testing.T) {
	asked := 0
	err := retry(t.Context(), func(context.Context) error {
		if asked++; asked < 3 {
			return fmt.Errorf("read: %w", &jetstream.APIError{Code: 503, ErrorCode: 10008})
		}
		return nil
	})
	if err != nil || asked != 3 {
		t.Errorf("asked %d times, %v", asked, err)
	}
	if err := retry(t.Context(), func(context.Context) error {
		asked++
		return jetstream.ErrMsgNotFound
	}); !errors.Is(err, jetstream.ErrMsgNotFound) || asked != 4 {
		t.Errorf("asked %d times, %v", asked, err)
	}
}

// A missing answer is an ErrNoAnswer. An answer that a record cannot be read is not.
func TestNoAnswer(t *testing.T) {
	l := &jetLog{copies: 1}
	for err, want := range map[error]bool{nats.ErrNoResponders: true, context.DeadlineExceeded: true,
		&jetstream.APIError{Code: 503}: true, &jetstream.APIError{Code: 500}: false, jetstream.ErrMsgNotFound: false} {
		if got := errors.Is(fmt.Errorf("read: %w", l.noAnswer(err)), ErrNoAnswer); got != want {
			t.Errorf("%v: %v", err, got)
		}
	}
}

func TestIsName(t *testing.T) {
	for name, want := range map[string]bool{"job-a1": true, "resp_B": true, strings.Repeat("a", 128): true,
		"": false, "*": false, ">": false, "a.b": false, "a b": false, "ä": false, strings.Repeat("a", 129): false} {
		if IsName(name) != want {
			t.Errorf("%q is a name: %v", name, !want)
		}
	}
}
