package tokenizer

import (
	"slices"

	"github.com/shoal-llm/shoal/internal/attempt"
)

// behavior selects the treatment of the matches of a split.
type behavior uint8

const (
	isolated behavior = iota
	removed
	mergedWithPrevious
	mergedWithNext
	contiguous
)

var behaviorNames = []string{"Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"}

func parseBehavior(n node) behavior {
	s := n.str()
	i := slices.Index(behaviorNames, s)
	if i < 0 {
		panic(attempt.Failure{Err: unsupported(n.path, "behavior", s, behaviorNames)})
	}
	return behavior(i)
}

// split splits p by m and emits the parts from left to right.
//
// A match merges with a neighbour only if that neighbour is a gap. Of consecutive matches,
// only the first (MergedWithPrevious) or the last (MergedWithNext) merges.
func (b behavior) split(p piece, m matcher, next func(piece) error) error {
	emit := func(lo, hi int) error {
		if lo == hi {
			return nil
		}
		return next(piece{p.text[lo:hi], p.first && lo == 0, p.searches})
	}
	switch b {
	case isolated:
		return m.match(p.text, p.searches, func(lo, hi int, _ bool) error { return emit(lo, hi) })
	case removed:
		return m.match(p.text, p.searches, func(lo, hi int, matched bool) error {
			if matched {
				return nil
			}
			return emit(lo, hi)
		})
	}
	lo, hi, held, before := 0, 0, false, false // start of the part not emitted yet; whether the last range was a match
	err := m.match(p.text, p.searches, func(l, h int, matched bool) error {
		merge := false
		switch b {
		case contiguous:
			merge = matched == before
		case mergedWithPrevious:
			merge = matched && !before
		case mergedWithNext:
			merge = before && !matched
		}
		before = matched
		if merge && held {
			hi = h
			return nil
		}
		old, end, had := lo, hi, held
		lo, hi, held = l, h, true
		if had {
			return emit(old, end)
		}
		return nil
	})
	if err == nil && held {
		err = emit(lo, hi)
	}
	return err
}
