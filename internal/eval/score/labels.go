package score

import (
	"regexp"
	"slices"
	"strings"
)

// class is LongBench's classification_score: 1, divided by the number of classes that the text
// names, if the right one is among them. A named class that is a part of the right one does not
// count. The original looks at every second class after one that it removed, and so does this.
func class(text string, r Reference) float64 {
	var named []string
	for _, c := range r.Classes {
		if strings.Contains(text, c) {
			named = append(named, c)
		}
	}
	score := 0.0
	for _, want := range r.Answers {
		left := slices.Clone(named)
		for i := 0; i < len(left); i++ {
			if c := left[i]; strings.Contains(want, c) && c != want {
				left = slices.Delete(left, slices.Index(left, c), slices.Index(left, c)+1)
			}
		}
		if slices.Contains(left, want) {
			score = max(score, 1/float64(len(left)))
		}
	}
	return score
}

var (
	digits      = regexp.MustCompile(`\d+`)
	ofParagraph = regexp.MustCompile(`(?:Paragraph |段落)(\d+)`)
)

// paragraph is LongBench's retrieval_score: the reference is "Paragraph 7".
func paragraph(text, want string) float64 {
	m := ofParagraph.FindStringSubmatch(want)
	if m == nil {
		return 0
	}
	return count(text, m[1])
}

// count is LongBench's count_score.
func count(text, want string) float64 {
	all := digits.FindAllString(text, -1)
	if len(all) == 0 {
		return 0
	}
	right := 0
	for _, n := range all {
		if n == want {
			right++
		}
	}
	return float64(right) / float64(len(all))
}

var inBrackets, bare = regexp.MustCompile(`The correct answer is \(([A-D])\)`), regexp.MustCompile(`The correct answer is ([A-D])`)

// letter scores an answer by the letter that LongBench v2 extracts from it.
func letter(text, want string) float64 {
	text = strings.ReplaceAll(text, "*", "")
	m := inBrackets.FindStringSubmatch(text)
	if m == nil {
		m = bare.FindStringSubmatch(text)
	}
	return is(m != nil && m[1] == want)
}

// option returns the letter that a text chooses, by the rules of Infinite-Bench's En.MC: the first character;
// else the letter after "answer is" and the like; else the first word that is a letter.
func option(text string) string {
	if text == "" {
		return ""
	}
	if strings.ContainsRune("ABCD", rune(text[0])) {
		return text[:1]
	}
	words := spaced(text, "\n\"'.,?!{}")
	text = strings.Join(words, " ")
	for _, lead := range []string{"answer is:", "answer:", "answer is", "option is"} {
		if _, rest, ok := strings.Cut(text, lead); ok {
			if rest = strings.TrimPrefix(rest, " "); rest != "" && strings.ContainsRune("ABCD", rune(rest[0])) {
				return rest[:1]
			}
			return ""
		}
	}
	for _, w := range words {
		if len(w) == 1 && strings.Contains("ABCD", w) {
			return w
		}
	}
	return ""
}

// debug scores an answer as Infinite-Bench's Code.Debug does: the references are a letter and a function.
func debug(text string, r Reference) float64 {
	for _, a := range r.Answers {
		if len(a) == 1 && (strings.HasPrefix(text, a+".") || strings.HasPrefix(text, a+":")) {
			return 1
		}
	}
	text = strings.NewReplacer("Option", " ", "option", " ").Replace(text)
	text = strings.Join(spaced(text, "\n`'\"-*"), " ")
	for _, lead := range []string{"answer is:", "is:", "answer:"} {
		if _, rest, ok := strings.Cut(text, lead); ok {
			rest = strings.TrimPrefix(rest, " ")
			return is(slices.ContainsFunc(r.Answers, func(a string) bool { return a != "" && strings.HasPrefix(rest, a) }))
		}
	}
	return 0
}

// spaced returns the words of a text in which some characters count as space.
func spaced(text, also string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune(also+" \t\r\v\f\n", r) })
}

func word(text, want string) float64 {
	return is(slices.Contains(spaced(text, "\n:\"'.,?!{}"), want))
}

func name(text, want string) float64 {
	return is(slices.Contains(spaced(strings.ToUpper(text), "\n:\"'.,?!{}"), want))
}
