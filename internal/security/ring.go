package security

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
)

// maxKeys is the maximum number of keys during a rotation: the old one, the new one, and room for a
// mistake.
const maxKeys = 4

// keyRing is shared by the copies of a Key from a file. It holds the keys as last read. The first is
// used, all are accepted.
type keyRing struct {
	path string

	mu      sync.Mutex
	keys    []Key // each without a ring
	watches map[*watch]struct{}
}

// watch is a function that is called after each reload.
type watch struct{ f func(keys []Key) }

// parseKeys parses one key per line and skips empty lines.
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
			return nil, fmt.Errorf("%w: key %d is a duplicate", ErrKeyFormat, len(keys)+1)
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

// onRing returns a Key that follows the file at path, whose current keys are keys.
func onRing(path string, keys []Key) Key {
	k := keys[0]
	k.ring = &keyRing{path: path, keys: keys}
	return k
}

// Keys returns the accepted keys, the one in use first.
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

// current returns the key in use, without its ring.
func (k Key) current() Key {
	if k.ring == nil {
		return k
	}
	k.ring.mu.Lock()
	defer k.ring.mu.Unlock()
	return k.ring.keys[0]
}

// Fingerprints returns the fingerprints of the accepted keys, the one in use first.
func (k Key) Fingerprints() (out []string) {
	for _, x := range k.Keys() {
		out = append(out, x.Fingerprint())
	}
	return out
}

// ErrNoFile is returned by Reload for a key that came without a file.
var ErrNoFile = errors.New("security: the cluster key was not read from a file")

// Reload reads the key file again and notifies the watchers. An error leaves the keys unchanged.
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
	keys, watches := slices.Clone(r.keys), slices.Collect(maps.Keys(r.watches))
	r.mu.Unlock()
	for _, w := range watches {
		w.f(keys)
	}
	return nil
}

// Watch registers f to be called with the keys after each reload, until stop. f must not block.
func (k Key) Watch(f func(keys []Key)) (stop func()) {
	r := k.ring
	if r == nil {
		return func() {}
	}
	w := &watch{f}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.watches == nil {
		r.watches = map[*watch]struct{}{}
	}
	r.watches[w] = struct{}{}
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.watches, w)
	}
}
