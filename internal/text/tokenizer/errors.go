package tokenizer

import (
	"errors"

	"github.com/shoal-llm/shoal/internal/text/tokenizer/vocabfile"
)

var (
	// ErrInvalid: a tokenizer file is malformed, inconsistent or exceeds a limit.
	ErrInvalid = vocabfile.ErrInvalid
	// ErrUnsupported: a tokenizer file requires an unsupported component.
	ErrUnsupported = vocabfile.ErrUnsupported
	// ErrGaveUp: a pattern exceeded its time or stack limit on a text, or a normalizer made the
	// text too long.
	ErrGaveUp = errors.New("tokenizer: gave up on the text")
)

// Limits on the contents of a file, checked before any allocation that depends on them.
const (
	maxFileBytes   = vocabfile.MaxFileBytes
	maxTokenID     = vocabfile.MaxTokenID
	maxMerges      = 1 << 22
	maxAddedTokens = 1 << 18
	maxAddedBytes  = 1 << 10 // per added token; bounds the work per text position
	maxStages      = 64      // components of one pipeline, including nested sequences
	maxNesting     = 8       // nesting of sequences
	maxContent     = 1 << 10 // inserted by a Replace or Prepend
	maxGrowth      = 64      // maximum growth factor of a text in normalization; NFKD needs 11
)

var (
	invalid     = vocabfile.Invalid
	unsupported = vocabfile.Unsupported
)
