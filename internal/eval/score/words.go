package score

import (
	"slices"
	"strings"
	"unicode"
)

// punctuation is Python's string.punctuation, which the benchmarks remove.
const punctuation = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"

// chinesePunctuation is also removed from Chinese texts.
const chinesePunctuation = "！？｡。＂＃＄％＆＇（）＊＋，－／：；＜＝＞＠［＼］＾＿｀｛｜｝～｟｠｢｣､、〃》「」『』【】〔〕〖〗〘〙〚〛〜〝〞〟〰〾〿–—‘’‛“”„‟…‧﹏"

// normalized returns the words in lower case, without ASCII punctuation and articles, like
// normalize_answer of SQuAD and LongBench.
func normalized(s string) []string {
	s = strings.Map(func(r rune) rune {
		if strings.ContainsRune(punctuation, r) {
			return -1
		}
		return unicode.ToLower(r)
	}, s)
	return strings.Fields(withoutArticles(s))
}

// withoutArticles replaces a, an and the between other than letters, digits and underscores.
func withoutArticles(s string) string {
	var b strings.Builder
	for len(s) > 0 {
		n := strings.IndexFunc(s, func(r rune) bool { return !inWord(r) })
		if n < 0 {
			n = len(s)
		}
		switch w := s[:n]; w {
		case "a", "an", "the":
			b.WriteByte(' ')
		default:
			b.WriteString(w)
		}
		s = s[n:]
		if n = strings.IndexFunc(s, inWord); n < 0 {
			n = len(s)
		}
		b.WriteString(s[:n])
		s = s[n:]
	}
	return b.String()
}

func inWord(r rune) bool { return unicode.IsLetter(r) || unicode.IsNumber(r) || r == '_' }

// characters returns the characters of a Chinese text in lower case, without space and punctuation.
func characters(s string) []string {
	var out []string
	for _, r := range s {
		if !unicode.IsSpace(r) && !strings.ContainsRune(punctuation, r) && !strings.ContainsRune(chinesePunctuation, r) {
			out = append(out, string(unicode.ToLower(r)))
		}
	}
	return out
}

func exact(text, want string) float64 { return is(slices.Equal(normalized(text), normalized(want))) }

func f1(text, want string) float64 { return shared(normalized(text), normalized(want)) }

func f1Chinese(text, want string) float64 { return shared(characters(text), characters(want)) }

// shared returns the F1 of two multisets of words.
func shared(got, want []string) float64 {
	left := map[string]int{}
	for _, w := range want {
		left[w]++
	}
	same := 0
	for _, w := range got {
		if left[w] > 0 {
			left[w]--
			same++
		}
	}
	if same == 0 {
		return 0
	}
	precision, recall := float64(same)/float64(len(got)), float64(same)/float64(len(want))
	return 2 * precision * recall / (precision + recall)
}

// Contains returns the fraction of wanted strings in text, ignoring case: RULER's string_match_all.
func Contains(text string, wanted []string) float64 {
	if len(wanted) == 0 {
		return 0
	}
	found := 0.0
	for _, w := range wanted {
		found += inside(text, w)
	}
	return found / float64(len(wanted))
}

// inside is RULER's string_match_part for one reference.
func inside(text, want string) float64 {
	return is(strings.Contains(strings.ToLower(text), strings.ToLower(want)))
}

// until returns the number of right words before the first wrong one, as a fraction of the words of want.
func until(text, want string) float64 {
	got, words := strings.Fields(text), strings.Fields(want)
	right := 0
	for right < min(len(got), len(words)) && got[right] == words[right] {
		right++
	}
	return float64(right) / float64(max(1, len(words)))
}
