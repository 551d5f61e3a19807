package rpc

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/shoal-llm/shoal/internal/proto"
)

// checkEnvelope rejects envelopes that no correct peer sends. sender is the node id of the
// connection's certificate, "" without TLS.
func checkEnvelope(e *proto.Envelope, sender string) error {
	switch {
	case e.Version < MinVersion || e.Version > Version:
		return versionError(e.Version, e.Version, "")
	case e.Kind == 0:
		return fmt.Errorf("%w 0", ErrUnknownKind)
	case len(e.Payload) > MaxPayload:
		return tooLarge(len(e.Payload))
	case len(e.Error) > maxErrText:
		return fmt.Errorf("%w: error text of %d bytes exceeds the limit of %d", ErrTooLarge, len(e.Error), maxErrText)
	case !idPattern.MatchString(e.From):
		return fmt.Errorf("%w: the sender's node id is missing", ErrIdentity)
	case sender != "" && e.From != sender:
		return fmt.Errorf("%w: it claims to be %s but its certificate is for %s", ErrIdentity, e.From, sender)
	}
	return nil
}

func versionError(low, high uint32, build string) error {
	spoken := fmt.Sprintf("version %d", high)
	if low != high {
		spoken = fmt.Sprintf("versions %d to %d", low, high)
	}
	if build != "" {
		build = fmt.Sprintf(" (build %.96s)", build)
	}
	return fmt.Errorf("%w: the peer%s speaks %s, this process %d to %d; upgrade the older of the two",
		ErrVersion, build, spoken, MinVersion, Version)
}

func tooLarge(n int) error {
	return fmt.Errorf("%w: %d bytes exceed the limit of %d; send bulk data over the collective transport", ErrTooLarge, n, MaxPayload)
}

// errText makes an error text fit for sending: bounded, and valid UTF-8. protobuf refuses other
// strings, and the sender would drop the message.
func errText(err error) string {
	text := strings.ToValidUTF8(err.Error(), "?")
	if text == "" {
		text = "rpc: unnamed error"
	}
	if len(text) > maxErrText {
		cut := maxErrText
		for cut > 0 && !utf8.RuneStart(text[cut]) {
			cut--
		}
		text = text[:cut]
	}
	return text
}
