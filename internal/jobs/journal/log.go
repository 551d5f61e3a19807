package journal

import (
	"context"
	"strings"
)

// Log stores journals. All methods may be called concurrently. Sequence numbers (seq) grow across
// all journals and are never reused.
type Log interface {
	// Append adds a message to a journal whose last message has the number after (0: the journal is
	// empty). It returns once the message survives a crash and a power loss. ErrConflict means that
	// the last message is another one. After any other error the message may or may not be stored.
	Append(ctx context.Context, journal string, after uint64, data []byte) (seq uint64, err error)
	// Read calls each, in order, for the messages of a journal that follow a number.
	Read(ctx context.Context, journal string, after uint64, each func(seq uint64, data []byte) error) error
	// Scan calls each, in order, for all messages of all journals.
	Scan(ctx context.Context, each func(journal string, seq uint64, data []byte) error) error
	// Follow calls each for new messages after a number, until ctx ends or the log cannot be read.
	Follow(ctx context.Context, after uint64, each func(journal string, seq uint64)) error
	Drop(ctx context.Context, journal string) error
	// DropThrough drops the messages of a journal up to and including a number. Later ones stay.
	DropThrough(ctx context.Context, journal string, seq uint64) error
	Clear(ctx context.Context) error
	// Usage returns the size of the log and its last number.
	Usage(ctx context.Context) (Usage, error)
	Close() error
}

// IsName reports whether s is a valid journal name, that is, one token of a subject. Names may come
// from clients.
func IsName(name string) bool {
	return name != "" && len(name) <= 128 && strings.IndexFunc(name, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_')
	}) < 0
}

// FileLog is a Log that can also list journals and read their last messages.
type FileLog interface {
	Log
	// Last returns the newest message of a journal; data is nil if the journal is empty.
	Last(ctx context.Context, journal string) (seq uint64, data []byte, err error)
	// Journals lists the journals that are not empty.
	Journals(ctx context.Context) ([]string, error)
}

type Usage struct {
	Bytes, Limit int64
	Last         uint64 // number of the newest message, deleted ones included
}

// Copy replaces the content of a log with the journals of another.
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
