package vocabfile

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
)

// Limits on the contents of a file, checked before any allocation that depends on them.
const (
	MaxFileBytes = 256 << 20 // the largest published tokenizer.json has about 35 MB
	MaxTokenID   = 1 << 21   // ids index arrays; the largest published vocabulary has about 262,000

	maxQuoted = 200 // bytes of a file's string in an error
)

// Invalid returns an ErrInvalid that names the file and the member. Strings of the file among args
// are shortened.
func Invalid(path, format string, args ...any) error {
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

// Unsupported returns an ErrUnsupported that lists the known values.
func Unsupported(path, kind, got string, known []string) error {
	return fmt.Errorf("%w: %s: %s %q is not one of %s", ErrUnsupported, clip(path), kind, clip(got), strings.Join(known, ", "))
}
