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
	// searchLimit is the deadline of one attempt of a search with a general pattern of the file. A
	// normal search takes microseconds. The second attempt covers a process that was frozen during
	// the first.
	searchLimit = 500 * time.Millisecond
	searchTries = 2
	// unlimitedTries is for Encode and EncodeLiteral, which no request waits for: a normal search
	// succeeds on any loaded machine.
	unlimitedTries = 240
	// searchBudget and searchPerByte limit all searches of a request together to ten times the
	// needs of a normal pattern.
	searchBudget  = time.Second
	searchPerByte = 4 * time.Microsecond
)

// searches is the search budget of one request. Only one goroutine uses it at a time.
type searches struct {
	ctx  context.Context
	left time.Duration
	// attempts per search; see searchTries
	tries int
}

// unlimited returns a budget without limit, so that the result does not depend on the load of the
// machine.
func unlimited() *searches {
	return &searches{ctx: context.Background(), left: math.MaxInt64, tries: unlimitedTries}
}

type searchesKey struct{}

// WithSearches returns a context whose encoded texts share one search budget, sequentially.
func WithSearches(ctx context.Context) context.Context {
	s := &searches{left: searchBudget, tries: searchTries}
	return context.WithValue(ctx, searchesKey{}, s)
}

// searchesOf returns the budget of a context, extended by a further text.
func searchesOf(ctx context.Context, bytes int) *searches {
	s, ok := ctx.Value(searchesKey{}).(*searches)
	if !ok {
		s = &searches{left: searchBudget, tries: searchTries}
	}
	s.ctx = ctx
	s.left += time.Duration(bytes) * searchPerByte
	return s
}

// find searches from a rune on. It returns ErrGaveUp if this pattern or all patterns together
// exceed their limit, or if the context has ended.
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
		if took >= searchLimit/2 { // a shorter time means that regexp2's own clock had stopped and jumped
			try++
		}
		if try >= s.tries || errors.Is(err, regexp2.ErrBacktrackingStackLimit) { // the error contains the text
			return nil, fmt.Errorf("%w: a pattern of the tokenizer took more than %v, or too much memory, for a search in %d characters",
				ErrGaveUp, searchLimit, len(text))
		}
	}
}
