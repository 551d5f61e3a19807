package score

import (
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"
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

// option scores an answer as Infinite-Bench's En.MC does: the references are a text and its letter. It reads the
// first character; else what follows "answer is" and the like; else the first word that is a letter.
func option(text string, r Reference) float64 {
	if text == "" {
		return 0
	}
	if strings.ContainsRune("ABCD", rune(text[0])) {
		return is(slices.Contains(r.Answers, text[:1]))
	}
	words := spaced(text, "\n\"'.,?!{}")
	if right, ok := following(strings.Join(words, " "), r, "answer is:", "answer:", "answer is", "option is"); ok {
		return right
	}
	for _, w := range words {
		if strings.Contains("ABCD", w) { // also AB, which the original takes for a letter
			return is(slices.Contains(r.Answers, w))
		}
	}
	return 0
}

// following scores what follows the first of leads that the text has: 1 if it begins with a reference. Like the
// original it skips one character after a lead, which may be other than a space.
func following(text string, r Reference, leads ...string) (score float64, ok bool) {
	for _, lead := range leads {
		if _, rest, ok := strings.Cut(text, lead); ok {
			_, skip := utf8.DecodeRuneInString(rest)
			return is(slices.ContainsFunc(r.Answers, func(a string) bool { return a != "" && strings.HasPrefix(rest[skip:], a) })), true
		}
	}
	return 0, false
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
	right, _ := following(text, r, "answer is:", "is:", "answer:")
	return right
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
