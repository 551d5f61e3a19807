// Package randomid makes ids that nobody guesses and that no two processes make alike.
package randomid

import (
	"crypto/rand"
	"encoding/base32"
	"strings"
)

// New is 128 random bits, spelled without ambiguity of case.
func New() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(b[:]))
}
