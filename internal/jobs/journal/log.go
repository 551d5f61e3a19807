package journal

import (
	"context"
	"strings"
)

// Log keeps journals. All methods may be called concurrently. Numbers (seq) grow
// over all journals and are never used twice.
type Log interface {
	// Append adds a message to a journal whose last message has the number after
	// (0: the journal is empty) and returns once it is safe from a crash and a
	// power loss. ErrConflict: the last message is another one. After any other
	// error the message may or may not be there.
	Append(ctx context.Context, journal string, after uint64, data []byte) (seq uint64, err error)
	// Read calls each for the messages of a journal after a number, in order.
	Read(ctx context.Context, journal string, after uint64, each func(seq uint64, data []byte) error) error
	// Scan calls each for all messages of all journals, in order.
	Scan(ctx context.Context, each func(journal string, seq uint64, data []byte) error) error
	// Follow calls each for the messages after a number as they come, until ctx
	// ends or the log cannot be read.
	Follow(ctx context.Context, after uint64, each func(journal string, seq uint64)) error
	Drop(ctx context.Context, journal string) error
	Clear(ctx context.Context) error
	// Usage tells how full the log is, and its last number.
	Usage(ctx context.Context) (Usage, error)
	Close() error
}

// IsName says that a journal may have that name, which a client may have sent: it is a word of a
// subject.
func IsName(name string) bool {
	return name != "" && len(name) <= 128 && strings.IndexFunc(name, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_')
	}) < 0
}

// FileLog is a Log whose journals are looked at from their ends.
type FileLog interface {
	Log
	// Last is the newest message of a journal; nil: it is empty.
	Last(ctx context.Context, journal string) (seq uint64, data []byte, err error)
	// Journals names those that are not empty.
	Journals(ctx context.Context) ([]string, error)
}

type Usage struct {
	Bytes, Limit int64
	Last         uint64 // number of the newest message ever
}

// Copy brings every journal of one log into another, in place of what is there.
func Copy(ctx context.Context, from, to Log) (messages int, err error) {
	if err := to.Clear(ctx); err != nil {
		return 0, err
	}
	last := map[string]uint64{}
	err = from.Scan(ctx, func(name string, _ uint64, data []byte) error {
		seq, err := to.Append(ctx, name, last[name], data)
		if err != nil {
			return err
		}
		last[name] = seq
		messages++
		return nil
	})
	return messages, err
}
