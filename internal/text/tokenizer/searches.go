package tokenizer

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/dlclark/regexp2/v2"
)

const (
	// searchLimit bounds one try of a search by a general pattern of the file, which an
	// honest one ends in microseconds. A second try lets a process pass that was frozen
	// during the first.
	searchLimit = 500 * time.Millisecond
	searchTries = 2
	// patientTries is for Encode and EncodeLiteral, which nobody waits for: an honest search
	// passes however busy the machine is.
	patientTries = 240
	// searchBudget and searchPerByte bound all searches of a request together, ten
	// times what an honest pattern needs.
	searchBudget  = time.Second
	searchPerByte = 4 * time.Microsecond
)

// searches is what the general patterns of a file may take for one request, and who
// waits for it. One goroutine uses it at a time.
type searches struct {
	ctx  context.Context
	left time.Duration
	// tries of a search; see searchTries
	tries int
}

// patient has no budget: the time that a busy machine takes does not change the outcome.
func patient() *searches {
	return &searches{ctx: context.Background(), left: math.MaxInt64, tries: patientTries}
}

type searchesKey struct{}

// WithSearches makes texts that are encoded under the context share one budget for
// searches, one after the other.
func WithSearches(ctx context.Context) context.Context {
	s := &searches{left: searchBudget, tries: searchTries}
	return context.WithValue(ctx, searchesKey{}, s)
}

// searchesOf is the budget of a context for a further text.
func searchesOf(ctx context.Context, bytes int) *searches {
	s, ok := ctx.Value(searchesKey{}).(*searches)
	if !ok {
		s = &searches{left: searchBudget, tries: searchTries}
	}
	s.ctx = ctx
	s.left += time.Duration(bytes) * searchPerByte
	return s
}

// find is a search from a rune on. The error is ErrGaveUp: the pattern, all of them
// together, or whoever waits has run out of patience.
func (s *searches) find(re *regexp2.Regexp, text []rune, from int) (*regexp2.Match, error) {
	for try := 0; ; {
		if err := context.Cause(s.ctx); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrGaveUp, err)
		}
		if s.left <= 0 {
			return nil, fmt.Errorf("%w: the patterns of the tokenizer have taken too long for this request", ErrGaveUp)
		}
		began := time.Now()
		m, err := re.FindRunesMatchStartingAt(text, from)
		took := time.Since(began)
		s.left -= took
		if err == nil {
			return m, nil
		}
		if took >= searchLimit/2 { // else regexp2's own clock stood still and jumped
			try++
		}
		if try >= s.tries || errors.Is(err, regexp2.ErrBacktrackingStackLimit) { // the error repeats the text
			return nil, fmt.Errorf("%w: a pattern of the tokenizer took more than %v, or too much memory, for a search in %d characters", ErrGaveUp, searchLimit, len(text))
		}
	}
}
