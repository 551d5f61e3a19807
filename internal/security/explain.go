package security

import (
	"crypto/tls"
	"errors"
	"fmt"
	"strings"
)

var (
	// ErrPlaintext: one side speaks TLS and the other does not.
	ErrPlaintext = errors.New("security: the peer does not speak TLS")
	// ErrRefused: the peer looked at our certificate and hung up.
	ErrRefused = errors.New("security: the peer refused our certificate")
)

var sentinels = []error{ErrWrongKey, ErrExpired, ErrRole, ErrIdentity, ErrPlaintext, ErrRefused}

// Distrust reports whether err says that the peers do not trust each other, which
// trying again does not change.
func Distrust(err error) bool {
	for _, known := range sentinels {
		if errors.Is(err, known) {
			return true
		}
	}
	return false
}

// Explain turns an error of a TLS handshake, or of the first read after it
// (in TLS 1.3 a client learns only there that the server refused it), into one
// that says what to do. Other errors come back as they are.
func Explain(err error) error {
	if err == nil {
		return nil
	}
	if Distrust(err) {
		return err
	}
	var record tls.RecordHeaderError
	text := err.Error()
	for _, known := range sentinels { // libraries between us and tls keep only the text
		if _, rest, ok := strings.Cut(text, known.Error()); ok {
			return fmt.Errorf("%w%s", known, strings.TrimRight(rest, `"`))
		}
	}
	switch {
	case errors.As(err, &record), strings.Contains(text, "first record does not look like a TLS handshake"):
		return fmt.Errorf("%w: it was started without the cluster key; give every process the same %s (%v)", ErrPlaintext, EnvKey, err)
	case strings.Contains(text, "remote error: tls:"):
		return fmt.Errorf("%w: it has another cluster key, or does not take our role, or its clock differs; its log says which (%v)", ErrRefused, err)
	}
	return err
}
