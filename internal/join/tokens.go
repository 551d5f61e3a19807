package join

import (
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/shoal-llm/shoal/internal/security"
	"github.com/shoal-llm/shoal/internal/sys/flock"
	"github.com/shoal-llm/shoal/internal/sys/wholefile"
)

// Tokens are the records of a cluster's tokens, in a file that the server and `shoal token`
// share. A lock keeps their changes apart.
type Tokens struct {
	dir string
	pin Pin
}

// Shortest and longest life of a token.
const (
	ShortestLife = time.Minute
	LongestLife  = 7 * 24 * time.Hour
)

// Create makes a token that is valid for some time.
func (t *Tokens) Create(life time.Duration) (Token, Record, error) {
	if life < ShortestLife || life > LongestLife {
		return Token{}, Record{}, fmt.Errorf("join: a token's life of %v: want %v to %v", life, ShortestLife, LongestLife)
	}
	token := newToken(t.pin)
	now := time.Now().Round(0) // the file keeps no monotonic reading
	r := Record{ID: token.ID, Public: token.key().Public().(ed25519.PublicKey), Created: now, Expires: now.Add(life)}
	return token, r, t.change(func(records []Record) ([]Record, error) { return append(records, r), nil })
}

// Revoke makes a token useless. Machines that have joined stay.
func (t *Tokens) Revoke(id string) error {
	return t.change(func(records []Record) ([]Record, error) {
		for i, r := range records {
			if r.ID == id {
				return append(records[:i:i], records[i+1:]...), nil
			}
		}
		return nil, fmt.Errorf("join: there is no token %q; `shoal token list` names them", id)
	})
}

// List returns the records, the oldest first; those that expired a day ago are gone.
func (t *Tokens) List() ([]Record, error) {
	records, err := t.read()
	return prune(records, time.Now()), err
}

// used notes that a machine has joined. It returns errRevoked if the token has been revoked since it was judged.
func (t *Tokens) used(id, machine string) error {
	return t.change(func(records []Record) ([]Record, error) {
		if !slices.ContainsFunc(records, func(r Record) bool { return r.ID == id }) {
			return nil, errRevoked
		}
		return used(records, id, machine), nil
	})
}

var errRevoked = errors.New("join: the token was revoked")

func (t *Tokens) path() string { return filepath.Join(t.dir, "tokens.json") }

// change rewrites the file under its lock.
func (t *Tokens) change(f func([]Record) ([]Record, error)) error {
	lock, err := openLock(filepath.Join(t.dir, "tokens.lock"))
	if err != nil {
		return err
	}
	defer lock.Close()
	records, err := t.read()
	if err != nil {
		return err
	}
	if records, err = f(records); err != nil {
		return err
	}
	text, err := json.MarshalIndent(prune(records, time.Now()), "", "  ")
	if err != nil {
		return err
	}
	return wholefile.Write(t.path(), text, 0o600)
}

// lockLimit is how long another process may hold the lock: it writes one small file.
const lockLimit = 5 * time.Second

func openLock(path string) (*os.File, error) {
	for began := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		f, err := flock.Open(path, flock.Own)
		if errors.Is(err, errors.ErrUnsupported) { // a system without locks: one program at a time
			return os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		}
		if err == nil || !errors.Is(err, flock.ErrHeld) {
			return f, err
		}
		f.Close()
		if time.Since(began) > lockLimit {
			return nil, fmt.Errorf("join: another process has held %s for %v", path, lockLimit)
		}
	}
}

func (t *Tokens) read() ([]Record, error) {
	text, err := readPrivate(t.path())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var records []Record
	if err == nil {
		err = json.Unmarshal(text, &records)
	}
	if err != nil {
		return nil, fmt.Errorf("join: %s: %w", t.path(), err)
	}
	return records, nil
}

// maxFile bounds the files of this package.
const maxFile = 1 << 20

// readPrivate reads a small file that only its owner can read.
func readPrivate(path string) ([]byte, error) {
	f, err := security.OpenPrivate(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return readAtMost(f, maxFile)
}
