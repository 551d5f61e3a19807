package security

import (
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"strings"
)

// KeySize is the length of the secret in bytes.
const KeySize = 32

const (
	keyPrefix   = "shoal1-"
	checkSize   = 4
	redacted    = "shoal-key(redacted)"
	infoContext = "shoal v1 "
)

var (
	// ErrKeyFormat is returned for text that is not a cluster key.
	ErrKeyFormat = errors.New("security: not a cluster key")
	// ErrNoKey is returned if a required key is missing.
	ErrNoKey = errors.New("security: no cluster key")
)

// Key is the secret that all processes of a cluster share. The zero Key is not a key. A Key from a
// file follows the file (Reload) and may accept several keys. Printing a Key shows a placeholder;
// only Text reveals it.
type Key struct {
	secret [KeySize]byte
	set    bool
	ring   *keyRing // the keys of a file, which may change; nil: only this key
}

// NewKey returns a key from the system's random source.
func NewKey() Key {
	k := Key{set: true}
	rand.Read(k.secret[:]) // never fails: crypto/rand aborts the process instead
	return k
}

// ParseKey parses the result of Key.Text, ignoring surrounding white space.
func ParseKey(text string) (Key, error) {
	text = strings.TrimSpace(text)
	if text == "" {
		return Key{}, fmt.Errorf("%w: the text is empty; make one with 'shoal keygen'", ErrKeyFormat)
	}
	body, ok := strings.CutPrefix(text, keyPrefix)
	if !ok {
		return Key{}, fmt.Errorf("%w: it does not begin with %q; make one with 'shoal keygen'", ErrKeyFormat, keyPrefix)
	}
	raw, err := base64.RawURLEncoding.Strict().DecodeString(body)
	if err != nil || len(raw) != KeySize+checkSize {
		return Key{}, fmt.Errorf("%w: %d characters after %q, want %d of base64; was it cut off when copied?",
			ErrKeyFormat, len(body), keyPrefix, base64.RawURLEncoding.EncodedLen(KeySize+checkSize))
	}
	sum := checksum(raw[:KeySize])
	if subtle.ConstantTimeCompare(sum[:], raw[KeySize:]) != 1 {
		return Key{}, fmt.Errorf("%w: the checksum does not match, so a character is wrong; copy it again", ErrKeyFormat)
	}
	k := Key{set: true}
	copy(k.secret[:], raw)
	return k, nil
}

// Text returns the key as one line: "shoal1-" and 48 characters of unpadded URL-safe base64 (32
// bytes of secret, 4 of checksum). It is the only function that reveals the secret; use it for
// 'shoal keygen' only.
func (k Key) Text() string {
	k = k.current()
	sum := checksum(k.secret[:])
	return keyPrefix + base64.RawURLEncoding.EncodeToString(append(k.secret[:], sum[:]...))
}

// IsZero reports whether k is the zero Key.
func (k Key) IsZero() bool { return !k.set }

// Equal compares in constant time.
func (k Key) Equal(o Key) bool {
	k, o = k.current(), o.current()
	return k.set == o.set && subtle.ConstantTimeCompare(k.secret[:], o.secret[:]) == 1
}

// Fingerprint identifies the key without revealing it. It is the same in every process and safe in
// logs, so it shows whether two keys differ.
func (k Key) Fingerprint() string {
	if !k.set {
		return "none"
	}
	return hex.EncodeToString(k.derive("fingerprint", 4))
}

// Gossip returns memberlist's AES-256 key.
func (k Key) Gossip() []byte { return k.derive("gossip aes-256", 32) }

// BusPassword returns the NATS password of a role. Roles have different passwords so that they can
// have different permissions.
func (k Key) BusPassword(role Role) string {
	return hex.EncodeToString(k.derive("bus password of "+string(role), 32))
}

// OperatorToken proves to a coordinator that a client holds the key, without revealing it. For no
// key it is "none".
func (k Key) OperatorToken() string {
	if !k.set {
		return "none"
	}
	return hex.EncodeToString(k.derive("operator token", 32))
}

// derive is HKDF-SHA256 with the purpose as info. Derived secrets reveal nothing about each other
// or about the key.
func (k Key) derive(purpose string, n int) []byte {
	if !k.set {
		panic("security: a secret was derived from the zero Key")
	}
	k = k.current()
	out, err := hkdf.Key(sha256.New, k.secret[:], nil, infoContext+purpose, n)
	if err != nil {
		panic("security: hkdf: " + err.Error()) // only if n exceeds 255 hashes
	}
	return out
}

func checksum(secret []byte) (sum [checkSize]byte) {
	full := sha256.Sum256(append([]byte(keyPrefix), secret...))
	copy(sum[:], full[:])
	return sum
}

// String, GoString, Format, LogValue and MarshalText hide the secret from fmt, slog and encoders.
func (k Key) String() string { return redacted }

// GoString hides the secret from %#v.
func (k Key) GoString() string { return redacted }

// Format hides the secret from every other verb.
func (k Key) Format(f fmt.State, _ rune) { fmt.Fprint(f, redacted) }

// LogValue hides the secret from slog.
func (k Key) LogValue() slog.Value { return slog.StringValue(redacted) }

// MarshalText hides the secret from encoding/json and others.
func (k Key) MarshalText() ([]byte, error) { return []byte(redacted), nil }
