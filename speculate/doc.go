// Package speculate guesses what a sequence says next from text that was there before: its
// own prompt and output, and recent outputs of others. Model-free speculative decoding:
// prompt lookup (Saxena, 2023) and suffix decoding (Oliaro et al., "SuffixDecoding", 2024,
// as in ArcticInference). A guess costs a row of a step and can never change a token: the
// row's owner draws the token at each position, and what differs from its draft is rolled
// back. See docs/decisions/speculation.md.
//
// [Text] is an index of one sequence, [Recent] one of the outputs of many. [Trust] turns what
// they find into probabilities, by what became of earlier drafts; [Cost] knows what rows cost
// here and now; [Choose] weighs one against the other. All are pure: no clock, no randomness.
package speculate

import (
	"fmt"
	"slices"
	"strings"
)

// Mode says how drafts are made.
type Mode string

// The modes, by the values of --speculate.
const (
	Off    Mode = "off"
	Lookup Mode = "lookup" // what followed the newest place with the same last tokens
	Suffix Mode = "suffix" // what followed most often where the longest suffix was met
)

// Modes lists them.
var Modes = []string{string(Off), string(Lookup), string(Suffix)}

// Parse reads a mode.
func Parse(s string) (Mode, error) {
	if !slices.Contains(Modes, s) {
		return "", fmt.Errorf("speculate: unknown mode %q: known are %s", s, strings.Join(Modes, ", "))
	}
	return Mode(s), nil
}

// Most is the largest number of drafts in a row, so a row has at most one token more.
const Most = 15
