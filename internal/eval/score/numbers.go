package score

import (
	"math/big"
	"regexp"
	"strings"
)

func firstInteger(text, want string) float64 { return is(digits.FindString(text) == want) }

var decimal = regexp.MustCompile(`\d+\.\d+|\d+`)

func firstNumber(text, want string) float64 { return equal(decimal.FindString(text), want) }

// integers is Infinite-Bench's Math.Calc: the references are the integers in order.
func integers(text string, r Reference) float64 {
	got, right := digits.FindAllString(text, len(r.Answers)), 0
	for right < len(got) && equal(got[right], r.Answers[right]) == 1 {
		right++
	}
	return float64(right) / float64(max(1, len(r.Answers)))
}

// lastInteger is Infinite-Bench's Code.Run.
func lastInteger(text, want string) float64 {
	words := spaced(text, "\n.`'\":")
	return is(len(words) > 0 && equal(words[len(words)-1], want) == 1)
}

var signed = regexp.MustCompile(`-?\$?\d[\d,]*(?:\.\d+)?|-?\.\d+`)

// GSM8K compares the last number of the text with that of the reference, whose solution ends with
// "#### 1,234". Thousands separators and currency signs do not count.
func GSM8K(text, want string) float64 { return equal(lastNumber(text), lastNumber(want)) }

func lastNumber(text string) string {
	all := signed.FindAllString(text, -1)
	if len(all) == 0 {
		return ""
	}
	return strings.NewReplacer(",", "", "$", "").Replace(all[len(all)-1])
}

// equal compares decimal numbers by value. Longer ones than any answer never match.
func equal(a, b string) float64 {
	const longest = 200
	if len(a) > longest || len(b) > longest || strings.ContainsAny(a+b, "eE/xXpPbBoO_") {
		return 0
	}
	x, ok := new(big.Rat).SetString(a)
	if !ok {
		return 0
	}
	y, ok := new(big.Rat).SetString(b)
	return is(ok && x.Cmp(y) == 0)
}
