package join

import (
	"crypto/ed25519"
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

// Sizes of the parts of a token, in bytes.
const (
	idSize     = 4
	secretSize = 16
	checkSize  = 4
	tokenSize  = idSize + secretSize + len(Pin{}) + checkSize
)

const tokenPrefix = "shoaljoin1-"

// ErrTokenFormat is returned for text that is not a token.
var ErrTokenFormat = errors.New("join: not a join token")

// Pin is the SHA-256 of the public key in a server's certificate (its SubjectPublicKeyInfo).
type Pin [sha256.Size]byte

// Short names a certificate in messages: the first 8 bytes of its fingerprint.
func (p Pin) Short() string { return hex.EncodeToString(p[:8]) }

// Text returns the whole fingerprint in hexadecimal digits.
func (p Pin) Text() string { return hex.EncodeToString(p[:]) }

// parsePin parses the output of Text.
func parsePin(text string) (p Pin, ok bool) {
	b, err := hex.DecodeString(text)
	return p, err == nil && len(b) == len(p) && copy(p[:], b) == len(p)
}

// Token lets machines join a cluster. Printing it shows its ID alone; only Text reveals it.
type Token struct {
	ID     string // names the token; no secret
	Pin    Pin    // the server that made it
	secret [secretSize]byte
}

// newToken draws a token for the server with this certificate.
func newToken(pin Pin) Token {
	t := Token{Pin: pin}
	var id [idSize]byte
	rand.Read(id[:])
	rand.Read(t.secret[:])
	t.ID = hex.EncodeToString(id[:])
	return t
}

// Text returns the token as one word: the prefix "shoaljoin1-" and 75 characters of unpadded
// URL-safe base64 (ID, secret, fingerprint, checksum).
func (t Token) Text() string {
	b, _ := hex.DecodeString(t.ID) // of a token that was drawn or parsed
	b = append(append(b, t.secret[:]...), t.Pin[:]...)
	sum := tokenSum(b)
	return tokenPrefix + base64.RawURLEncoding.EncodeToString(append(b, sum[:]...))
}

// ParseToken parses the output of Text. White space around it is ignored.
func ParseToken(text string) (Token, error) {
	body, ok := strings.CutPrefix(strings.TrimSpace(text), tokenPrefix)
	if !ok {
		return Token{}, fmt.Errorf("%w: it does not begin with %q; make one with `shoal token create` on the first machine",
			ErrTokenFormat, tokenPrefix)
	}
	raw, err := base64.RawURLEncoding.Strict().DecodeString(body)
	if err != nil || len(raw) != tokenSize {
		return Token{}, fmt.Errorf("%w: %d characters after %q, want %d of base64: copy the whole line again", ErrTokenFormat, len(body),
			tokenPrefix, base64.RawURLEncoding.EncodedLen(tokenSize))
	}
	sum := tokenSum(raw[:tokenSize-checkSize])
	if subtle.ConstantTimeCompare(sum[:], raw[tokenSize-checkSize:]) != 1 {
		return Token{}, fmt.Errorf("%w: the checksum does not match, so a character is wrong: copy it again", ErrTokenFormat)
	}
	t := Token{ID: hex.EncodeToString(raw[:idSize])}
	copy(t.secret[:], raw[idSize:])
	copy(t.Pin[:], raw[idSize+secretSize:])
	return t, nil
}

func tokenSum(b []byte) (sum [checkSize]byte) {
	full := sha256.Sum256(append([]byte(tokenPrefix), b...))
	copy(sum[:], full[:])
	return sum
}

// key returns the signing key that is derived from the secret. The server has only its public half.
func (t Token) key() ed25519.PrivateKey {
	seed, err := hkdf.Key(sha256.New, t.secret[:], nil, "shoal join token v1 "+t.ID, ed25519.SeedSize)
	if err != nil {
		panic("join: hkdf: " + err.Error()) // only for more than 255 hashes
	}
	return ed25519.NewKeyFromSeed(seed)
}

// String, GoString, Format, LogValue and MarshalText hide the secret from fmt, slog and
// encoders.
func (t Token) String() string { return "shoal-join-token(" + t.ID + ")" }

// GoString hides the secret from %#v.
func (t Token) GoString() string { return t.String() }

// Format hides the secret from every other verb.
func (t Token) Format(f fmt.State, _ rune) { fmt.Fprint(f, t.String()) }

// LogValue hides the secret from slog.
func (t Token) LogValue() slog.Value { return slog.StringValue(t.String()) }

// MarshalText hides the secret from encoding/json and others.
func (t Token) MarshalText() ([]byte, error) { return []byte(t.String()), nil }
