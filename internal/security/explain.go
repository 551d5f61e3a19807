package security

import (
	"crypto/tls"
	"errors"
	"fmt"
	"strings"
)

var (
	// ErrPlaintext: only one of the two sides uses TLS.
	ErrPlaintext = errors.New("security: the peer does not speak TLS")
	// ErrRefused: the peer rejected our certificate and closed the connection.
	ErrRefused = errors.New("security: the peer refused our certificate")
)

var sentinels = []error{ErrWrongKey, ErrExpired, ErrRole, ErrIdentity, ErrPlaintext, ErrRefused}

// Distrust reports whether err means that the peers do not trust each other. Retrying does not
// help.
func Distrust(err error) bool {
	for _, known := range sentinels {
		if errors.Is(err, known) {
			return true
		}
	}
	return false
}

// Explain adds advice to an error of a TLS handshake. It also handles the first read after it, in which
// a TLS 1.3 client receives the server's refusal. Other errors are returned unchanged.
func Explain(err error) error {
	if err == nil {
		return nil
	}
	if Distrust(err) {
		return err
	}
	var record tls.RecordHeaderError
	text := err.Error()
	for _, known := range sentinels { // libraries in between keep only the text
		if _, rest, ok := strings.Cut(text, known.Error()); ok {
			return fmt.Errorf("%w%s", known, strings.TrimRight(rest, `"`))
		}
	}
	switch {
	case errors.As(err, &record), strings.Contains(text, "first record does not look like a TLS handshake"):
		return fmt.Errorf("%w: it was started without the cluster key; give every process the same %s (%v)", ErrPlaintext, EnvKey, err)
	case strings.Contains(text, "remote error: tls:"):
		return fmt.Errorf("%w: it has another cluster key, or does not accept our role, or its clock differs; its log has the cause (%v)",
			ErrRefused, err)
	}
	return err
}
