package tokenizer

import (
	"errors"
	"fmt"
	"strings"
)

var (
	// ErrInvalid: a tokenizer file is malformed, inconsistent or exceeds a limit.
	ErrInvalid = errors.New("tokenizer: invalid file")
	// ErrUnsupported: a tokenizer file requires an unsupported component.
	ErrUnsupported = errors.New("tokenizer: unsupported component")
	// ErrGaveUp: a pattern exceeded its time or stack limit on a text, or a normalizer made the
	// text too long.
	ErrGaveUp = errors.New("tokenizer: gave up on the text")
)

// Limits on the contents of a file, checked before any allocation that depends on them.
const (
	maxFileBytes   = 256 << 20 // the largest published tokenizer.json has about 35 MB
	maxTokenID     = 1 << 21   // ids index arrays; the largest published vocabulary has about 262,000
	maxMerges      = 1 << 22
	maxAddedTokens = 1 << 18
	maxAddedBytes  = 1 << 10 // per added token; bounds the work per text position
	maxStages      = 64      // components of one pipeline, including nested sequences
	maxNesting     = 8       // nesting of sequences
	maxContent     = 1 << 10 // inserted by a Replace or Prepend
	maxQuoted      = 200     // bytes of a file's string in an error
	maxGrowth      = 64      // maximum growth factor of a text in normalization; NFKD needs 11
)

func invalid(path, format string, args ...any) error {
	for i, a := range args {
		if s, ok := a.(string); ok {
			args[i] = clip(s)
		}
	}
	return fmt.Errorf("%w: %s: %s", ErrInvalid, clip(path), fmt.Sprintf(format, args...))
}

// clip shortens a string of a file for an error message: it may have hundreds of megabytes.
func clip(s string) string {
	if len(s) <= maxQuoted {
		return s
	}
	return strings.ToValidUTF8(s[:maxQuoted], "") + "..."
}

func unsupported(path, kind, got string, known []string) error {
	return fmt.Errorf("%w: %s: %s %q is not one of %s", ErrUnsupported, clip(path), kind, clip(got), strings.Join(known, ", "))
}
