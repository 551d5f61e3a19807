package tokenizer

import (
	"errors"
	"fmt"
	"strings"
)

var (
	// ErrInvalid: a tokenizer file is malformed, contradicts itself or passes a limit.
	ErrInvalid = errors.New("tokenizer: invalid file")
	// ErrUnsupported: a tokenizer file asks for a component that is not built in.
	ErrUnsupported = errors.New("tokenizer: unsupported component")
	// ErrGaveUp: a pattern ran past its time or stack limit on a text, or a
	// normalizer blew the text up.
	ErrGaveUp = errors.New("tokenizer: gave up on the text")
)

// Limits on what a file may ask for, checked before anything is allocated from it.
const (
	maxFileBytes   = 256 << 20 // largest published tokenizer.json: about 35 MB
	maxTokenID     = 1 << 21   // ids index arrays; largest published vocabulary: about 262,000
	maxMerges      = 1 << 22
	maxAddedTokens = 1 << 18
	maxAddedBytes  = 1 << 10 // one added token; bounds the work per text position
	maxStages      = 64      // components of one pipeline, nested sequences included
	maxNesting     = 8       // sequences within sequences
	maxContent     = 1 << 10 // what a Replace or Prepend puts in
	maxQuoted      = 200     // bytes of a file's string in an error
	maxGrowth      = 64      // times a text may grow in normalization; NFKD needs 11
)

func invalid(path, format string, args ...any) error {
	for i, a := range args {
		if s, ok := a.(string); ok {
			args[i] = clip(s)
		}
	}
	return fmt.Errorf("%w: %s: %s", ErrInvalid, clip(path), fmt.Sprintf(format, args...))
}

// clip shortens what a file says, for an error that is read: its strings may have
// hundreds of megabytes.
func clip(s string) string {
	if len(s) <= maxQuoted {
		return s
	}
	return strings.ToValidUTF8(s[:maxQuoted], "") + "..."
}

func unsupported(path, kind, got string, known []string) error {
	return fmt.Errorf("%w: %s: %s %q is not one of %s", ErrUnsupported, clip(path), kind, clip(got), strings.Join(known, ", "))
}
