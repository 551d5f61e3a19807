package compare

import (
	"fmt"
	"time"
)

// arrival is a number of tokens and the time of their arrival.
type arrival struct {
	at     time.Time
	tokens int
}

// stepTime returns the time per token while all sequences decode.
func stepTime(all [][]arrival) (time.Duration, error) {
	var begin, end time.Time
	for _, a := range all {
		if begin.IsZero() || a[0].at.After(begin) {
			begin = a[0].at
		}
		if last := a[len(a)-1].at; end.IsZero() || last.Before(end) {
			end = last
		}
	}
	tokens := 0
	for _, a := range all {
		for _, x := range a {
			if x.at.After(begin) && !x.at.After(end) {
				tokens += x.tokens
			}
		}
	}
	if tokens < 2*len(all) {
		return 0, fmt.Errorf("compare: only %d tokens arrived while all %d sequences ran: request more tokens", tokens, len(all))
	}
	return end.Sub(begin) * time.Duration(len(all)) / time.Duration(tokens), nil
}
