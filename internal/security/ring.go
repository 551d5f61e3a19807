package security

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
)

// maxKeys are the keys of a cluster that changes them: the old one and the new one, and
// room for a mistake.
const maxKeys = 4

// ring is what the copies of a Key from a file share: the keys of the file as it was
// read last. The first is used, all are accepted.
type ring struct {
	path string

	mu      sync.Mutex
	keys    []Key // without a ring
	watches []func(keys []Key)
}

// parseKeys reads one key a line. Empty lines are skipped.
func parseKeys(text string) ([]Key, error) {
	var keys []Key
	for line := range strings.Lines(text) {
		if strings.TrimSpace(line) == "" {
			continue
		}
		k, err := ParseKey(line)
		if err != nil {
			return nil, fmt.Errorf("key %d: %w", len(keys)+1, err)
		}
		if slices.ContainsFunc(keys, k.Equal) {
			return nil, fmt.Errorf("%w: key %d stands there twice", ErrKeyFormat, len(keys)+1)
		}
		keys = append(keys, k)
	}
	if len(keys) > maxKeys {
		return nil, fmt.Errorf("%w: %d keys, at most %d", ErrKeyFormat, len(keys), maxKeys)
	}
	if len(keys) == 0 {
		_, err := ParseKey("")
		return nil, err
	}
	return keys, nil
}

// onRing is a Key that follows the file at path, which holds keys now.
func onRing(path string, keys []Key) Key {
	k := keys[0]
	k.ring = &ring{path: path, keys: keys}
	return k
}

// Keys are those that are accepted, the one in use first.
func (k Key) Keys() []Key {
	switch {
	case k.ring != nil:
		k.ring.mu.Lock()
		defer k.ring.mu.Unlock()
		return slices.Clone(k.ring.keys)
	case k.set:
		return []Key{k}
	}
	return nil
}

// current is the key in use, without its ring.
func (k Key) current() Key {
	if k.ring == nil {
		return k
	}
	k.ring.mu.Lock()
	defer k.ring.mu.Unlock()
	return k.ring.keys[0]
}

// Fingerprints names the keys that are accepted, the one in use first.
func (k Key) Fingerprints() (out []string) {
	for _, x := range k.Keys() {
		out = append(out, x.Fingerprint())
	}
	return out
}

// ErrNoFile is returned for a key that cannot be read again: it came without a file.
var ErrNoFile = errors.New("security: the cluster key came from no file")

// Reload reads the file of the key again, and tells whoever watches. After an error the
// keys are those of before.
func (k Key) Reload() error {
	if k.ring == nil || k.ring.path == "" {
		return ErrNoFile
	}
	again, err := ReadKeyFile(k.ring.path)
	if err != nil {
		return err
	}
	r := k.ring
	r.mu.Lock()
	r.keys = again.ring.keys
	keys, watches := slices.Clone(r.keys), slices.Clone(r.watches)
	r.mu.Unlock()
	for _, f := range watches {
		f(keys)
	}
	return nil
}

// Watch has f called with the keys whenever they were read again. f must not block.
func (k Key) Watch(f func(keys []Key)) {
	if k.ring == nil {
		return
	}
	k.ring.mu.Lock()
	defer k.ring.mu.Unlock()
	k.ring.watches = append(k.ring.watches, f)
}
