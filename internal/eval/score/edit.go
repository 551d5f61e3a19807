package score

import (
	"math"
	"strings"
)

// maxLine bounds the characters that edit similarity compares.
const maxLine = 16 << 10

// code compares the first line of the text that holds no back quote, '#' or '//' with the wanted
// line, like LongBench's code_sim_score.
func code(text, want string) float64 {
	line := ""
	for l := range strings.SplitSeq(strings.TrimLeft(text, "\n"), "\n") {
		if !strings.ContainsAny(l, "`#") && !strings.Contains(l, "//") {
			line = l
			break
		}
	}
	return Edit(line, want)
}

// Edit returns the edit similarity of two texts in whole percents: characters kept when one becomes
// the other by insertions and deletions, twice, divided by the characters of both. It is
// fuzz.ratio of fuzzywuzzy with python-Levenshtein.
func Edit(a, b string) float64 {
	if a == b {
		return 1
	}
	x, y := []rune(a[:min(len(a), maxLine)]), []rune(b[:min(len(b), maxLine)])
	row := make([]int, len(y)+1) // longest common subsequences of a start of x and the starts of y
	for _, r := range x {
		diagonal := 0
		for j, s := range y {
			above := row[j+1]
			if r == s {
				row[j+1] = diagonal + 1
			} else {
				row[j+1] = max(above, row[j])
			}
			diagonal = above
		}
	}
	return math.RoundToEven(200*float64(row[len(y)])/float64(len(x)+len(y))) / 100
}
