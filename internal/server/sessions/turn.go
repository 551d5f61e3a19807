package sessions

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"time"

	"github.com/shoal-llm/shoal/internal/server/engine"
)

// Limits of sessions.
const (
	DefaultTTL   = time.Hour
	MaxTTL       = 30 * 24 * time.Hour
	MaxSessions  = 1024
	MaxTokens    = 1 << 20
	MaxBytes     = 32 << 20  // of one session, as its records have them
	MaxAllBytes  = 256 << 20 // of all sessions
	MaxTurnBytes = 8 << 20   // of one record
	MaxName      = 64
)

var pattern = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)

// ValidName reports whether a session or a context may have a name. Its route ends with the name, and clients remove "."
// and ".." from paths.
func ValidName(s string) bool { return pattern.MatchString(s) && s != "." && s != ".." }

// ErrRecord means that a record is not a turn.
var ErrRecord = errors.New("sessions: invalid turn")

// Head has the settings of the first turn of a session, which later turns must have too.
type Head struct {
	Tenant      string `json:"tenant"` // the API key that the session belongs to
	Name        string `json:"name"`
	Model       string `json:"model"`       // as requests name it
	Fingerprint string `json:"fingerprint"` // of model, weight types and adapter
	Policy      string `json:"kv_policy"`
	Chat        string `json:"chat,omitempty"` // of a chat: hash of its template, tools and template variables
}

// Turn is the record of one turn of a session.
type Turn struct {
	Head   *Head   `json:"head,omitempty"` // of the first turn
	TTL    int64   `json:"ttl"`            // seconds
	Prompt []int32 `json:"prompt"`         // new tokens before the answer
	Output []int32 `json:"output"`         // the answer, without the token that ended it
	// Messages are those of a chat: the new ones and the answer.
	Messages []engine.Message `json:"messages,omitempty"`
}

// Encode returns the form on disk.
func (t *Turn) Encode() ([]byte, error) {
	b, err := json.Marshal(t)
	if err == nil && len(b) > MaxTurnBytes {
		err = fmt.Errorf("%w: its record has %d bytes, at most %d are possible", ErrRecord, len(b), MaxTurnBytes)
	}
	return b, err
}

// DecodeTurn reads the form on disk.
func DecodeTurn(b []byte) (t Turn, err error) {
	if len(b) > MaxTurnBytes {
		return t, fmt.Errorf("%w: its record has %d bytes, at most %d are possible", ErrRecord, len(b), MaxTurnBytes)
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&t); err != nil {
		return t, fmt.Errorf("%w: %v", ErrRecord, err)
	}
	return t, t.check()
}

func (t *Turn) check() error {
	bad := func(format string, a ...any) error { return fmt.Errorf("%w: %s", ErrRecord, fmt.Sprintf(format, a...)) }
	switch {
	case t.TTL < 1 || t.TTL > int64(MaxTTL/time.Second):
		return bad("its time to live is %d s: want 1 to %d", t.TTL, int64(MaxTTL/time.Second))
	case len(t.Prompt) == 0:
		return bad("it has no prompt")
	case t.Head != nil && !pattern.MatchString(t.Head.Name):
		return bad("the session's name is %.80q, which is not a valid one", t.Head.Name)
	}
	for _, ids := range [][]int32{t.Prompt, t.Output} {
		for i, id := range ids {
			if id < 0 {
				return bad("token %d has the id %d, which is negative", i, id)
			}
		}
	}
	return nil
}
