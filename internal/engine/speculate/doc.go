// Package speculate guesses what a sequence says next from text that was there before: its
// own prompt and output, and recent outputs of others. Model-free speculative decoding:
// prompt lookup (Saxena, 2023) and suffix decoding (Oliaro et al., "SuffixDecoding", 2024,
// as in ArcticInference). A guess costs a row of a step and can never change a token: the
// row's owner draws the token at each position, and what differs from its draft is rolled
// back. See docs/decisions/speculation.md.
//
// A text that says a part of itself again, changed here and there, is followed through the changes.
//
// [Text] is an index of one sequence, [Recent] one of the outputs of many. [Trust] turns what
// they find into probabilities, by what became of earlier drafts; [Cost] knows what rows cost
// here and now; [Choose] weighs one against the other. All are pure: no clock, no randomness.
package speculate

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Mode says how drafts are made.
type Mode string

// The modes, by the values of --speculate.
const (
	Off    Mode = "off"
	Lookup Mode = "lookup" // what followed the newest place with the same last tokens
	Suffix Mode = "suffix" // what followed most often where the longest suffix was met
	Model  Mode = "model"  // that, or what a small model guesses, whichever is likelier to gain
)

var Modes = []string{string(Off), string(Lookup), string(Suffix), string(Model)}

// Parse reads a mode: its name, and perhaps how many drafts a row always has, whatever they
// cost, as far as any are found: suffix:4. Of model:4 the small model alone guesses.
func Parse(s string) (Mode, error) {
	name, width := Mode(s).Split()
	if !slices.Contains(Modes, string(name)) || strings.Contains(s, ":") && (width < 1 || width > Most || name == Off) {
		return "", fmt.Errorf("speculate: unknown mode %q: known are %s, and lookup:N suffix:N and model:N with N drafts a row, 1 to %d, whatever they cost", s, strings.Join(Modes, ", "), Most)
	}
	return Mode(s), nil
}

// Split is the name of a mode and its drafts a row; 0: as many as gain.
func (m Mode) Split() (name Mode, width int) {
	before, number, _ := strings.Cut(string(m), ":")
	width, _ = strconv.Atoi(number) // else 0, which Parse refuses
	return Mode(before), width
}

// Most is the largest number of drafts in a row, so a row has at most one token more.
const Most = 15
