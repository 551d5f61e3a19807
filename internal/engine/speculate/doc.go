// Package speculate drafts the next tokens of a sequence from earlier text: its own prompt and
// output, and recent outputs of others. This is model-free speculative decoding: prompt lookup
// (Saxena, 2023) and suffix decoding (Oliaro et al., "SuffixDecoding", 2024, as in
// ArcticInference). A draft costs a row of a step and can never change a token: the row's owner
// draws the token at each position, and rows after a wrong draft are rolled back. See
// docs/decisions/speculation.md.
//
// A text that repeats a part of itself with changes is followed through the changes.
//
// [Text] indexes one sequence, [Recent] the outputs of many. [AcceptanceRates] turns their matches into
// probabilities, by the success of earlier drafts. [Cost] estimates the present cost of rows, and
// [Cost.Choose] weighs both. All are pure: no clock, no randomness.
package speculate

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Mode is the source of drafts.
type Mode string

// The modes, by the values of --speculate.
const (
	Off    Mode = "off"
	Lookup Mode = "lookup" // tokens after the newest place with the same last tokens
	Suffix Mode = "suffix" // most frequent tokens after the longest suffix
	Model  Mode = "model"  // Suffix or a small model's drafts, whichever is likelier to gain
)

var Modes = []string{string(Off), string(Lookup), string(Suffix), string(Model)}

// Parse parses a mode: its name, and optionally a fixed number of drafts a row, independent of their
// cost, such as suffix:4. With model:4 only the small model drafts.
func Parse(s string) (Mode, error) {
	name, width := Mode(s).Split()
	if !slices.Contains(Modes, string(name)) || strings.Contains(s, ":") && (width < 1 || width > MaxDraft || name == Off) {
		return "", fmt.Errorf("speculate: unknown mode %q: known are %s, and lookup:N suffix:N and model:N with N drafts a row, 1 to %d, "+
			"whatever they cost", s, strings.Join(Modes, ", "), MaxDraft)
	}
	return Mode(s), nil
}

// Split returns a mode's name and its drafts per row; 0: as many as pay.
func (m Mode) Split() (name Mode, width int) {
	before, number, _ := strings.Cut(string(m), ":")
	width, _ = strconv.Atoi(number) // 0 without a number, which Parse refuses
	return Mode(before), width
}

// MaxDraft is the largest number of drafts in a row. A row has one token more.
const MaxDraft = 15
