package score

import "strings"

// maxSentence bounds the words of a sentence, and so the table of a longest common subsequence.
const maxSentence = 2048

// RougeL returns the F1 of Rouge-L as LongBench measures it, with the package rouge for Python: at
// the level of summaries, over sets of words. Full stops separate sentences.
func RougeL(text, want string) float64 { return rouge(sentences(text), sentences(want)) }

func rougeChinese(text, want string) float64 {
	return rouge([][]string{clip(characters(text))}, [][]string{clip(characters(want))})
}

// sentences returns the words of each sentence. White space around a full stop gives a sentence of
// one empty word, which counts in the original too.
func sentences(s string) [][]string {
	var out [][]string
	for part := range strings.SplitSeq(s, ".") {
		if part == "" {
			continue
		}
		words := strings.Fields(part)
		if len(words) == 0 {
			words = []string{""}
		}
		out = append(out, clip(words))
	}
	return out
}

func clip(words []string) []string { return words[:min(len(words), maxSentence)] }

func rouge(got, want [][]string) float64 {
	if len(got) == 0 || len(want) == 0 {
		return 0
	}
	union, found := map[string]bool{}, 0
	for _, w := range want {
		before := len(union)
		for _, g := range got {
			common(w, g, union)
		}
		found += len(union) - before
	}
	n, m := distinct(got), distinct(want)
	if n == 0 || m == 0 {
		return 0
	}
	precision, recall := float64(found)/float64(n), float64(found)/float64(m)
	return 2 * (precision * recall / (precision + recall + 1e-8))
}

func distinct(sentences [][]string) int {
	seen := map[string]bool{}
	for _, s := range sentences {
		for _, w := range s {
			seen[w] = true
		}
	}
	return len(seen)
}

// common adds the words of a longest common subsequence of x and y to into. Of several it takes the
// one that the original finds.
func common(x, y []string, into map[string]bool) {
	width, table := len(y)+1, lengths(x, y)
	for i, j := len(x), len(y); i > 0 && j > 0; {
		switch at := i*width + j; {
		case x[i-1] == y[j-1]:
			into[x[i-1]] = true
			i, j = i-1, j-1
		case table[at-width] > table[at-1]:
			i--
		default:
			j--
		}
	}
}

// lengths returns the lengths of the longest common subsequences of each start of x and each start of y,
// (len(x)+1) x (len(y)+1).
func lengths(x, y []string) []uint16 {
	width := len(y) + 1
	table := make([]uint16, (len(x)+1)*width)
	for i := range x {
		for j := range y {
			at := (i+1)*width + j + 1
			if x[i] == y[j] {
				table[at] = table[at-width-1] + 1
			} else {
				table[at] = max(table[at-width], table[at-1])
			}
		}
	}
	return table
}

// maxSummary bounds the words of a line of a summary, like maxSentence.
const maxSummary = 4096

// rougeSum returns the F1 of Rouge-L at the level of summaries as Infinite-Bench measures it, with the package
// rouge_score for Python and no stemmer: lines are sentences, and a word counts as often as both texts have it.
func rougeSum(text, want string) float64 {
	got, lines := summary(text), summary(want)
	n, left := counts(got)
	m, _ := counts(lines) // the words of a line are found at most once each, so m need not be counted down
	found := 0
	for _, line := range lines {
		in := make([]bool, len(line))
		for _, g := range got {
			mark(line, g, in)
		}
		for i, w := range line {
			if in[i] && left[w] > 0 {
				left[w]--
				found++
			}
		}
	}
	if found == 0 {
		return 0
	}
	precision, recall := float64(found)/float64(n), float64(found)/float64(m)
	return 2 * precision * recall / (precision + recall)
}

// summary returns the words of each line: runs of ASCII letters and digits, in lower case.
func summary(s string) (out [][]string) {
	for line := range strings.SplitSeq(s, "\n") {
		words := strings.FieldsFunc(strings.ToLower(line), func(r rune) bool { return !(r >= 'a' && r <= 'z' || r >= '0' && r <= '9') })
		out = append(out, words[:min(len(words), maxSummary)])
	}
	return out
}

// counts returns the number of words in all sentences, and of each word.
func counts(sentences [][]string) (n int, of map[string]int) {
	of = map[string]int{}
	for _, s := range sentences {
		n += len(s)
		for _, w := range s {
			of[w]++
		}
	}
	return n, of
}

// mark marks the words of x in a longest common subsequence of x and y. Of several it takes the one that the
// original finds.
func mark(x, y []string, in []bool) {
	width, table := len(y)+1, lengths(x, y)
	for i, j := len(x), len(y); i > 0 && j > 0; {
		switch at := i*width + j; {
		case x[i-1] == y[j-1]:
			in[i-1] = true
			i, j = i-1, j-1
		case table[at-1] > table[at-width]:
			j--
		default:
			i--
		}
	}
}
