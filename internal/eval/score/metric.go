package score

import (
	"fmt"
	"slices"
	"strings"
)

// Reference has the texts with which an answer is compared.
type Reference struct {
	Answers []string // right answers; a metric requires one or all of them
	Classes []string // all labels of a classification (LongBench's all_classes)
}

// Metric is a rule by which an answer is scored.
type Metric struct {
	Name  string
	About string
	score func(text string, r Reference) float64
}

// Score returns the score of text, 0 to 1.
func (m Metric) Score(text string, r Reference) float64 { return m.score(text, r) }

// metrics lists all metrics in the order of the help.
var metrics = []Metric{
	{"exact", "the normalized text is a reference", best(exact)},
	{"contains", "fraction of the references in the text (RULER)", func(t string, r Reference) float64 { return Contains(t, r.Answers) }},
	{"any", "one of the references is in the text (RULER's question answering)", best(inside)},
	{"until", "fraction of the reference's words before the first wrong one", best(until)},
	{"f1", "F1 of the normalized words (LongBench)", best(f1)},
	{"f1_zh", "F1 of the characters, for Chinese (Infinite-Bench)", best(f1Chinese)},
	{"rouge_l", "Rouge-L, F1 (LongBench)", best(RougeL)},
	{"rouge_l_zh", "Rouge-L of characters, F1", best(rougeChinese)},
	{"rouge_lsum", "Rouge-L of summaries, F1 (Infinite-Bench)", best(rougeSum)},
	{"edit", "edit similarity of the first line of code (LongBench)", best(code)},
	{"class", "the named class, shared with others that are named (LongBench)", class},
	{"paragraph", "share of the numbers in the text that are the paragraph's (LongBench)", best(paragraph)},
	{"count", "share of the numbers in the text that are the reference (LongBench)", best(count)},
	{"letter", "the letter after \"The correct answer is\" (LongBench v2)", best(letter)},
	{"option", "the chosen letter A to D, or its text (Infinite-Bench's En.MC)", option},
	{"debug", "the chosen letter or function of Code.Debug (Infinite-Bench)", debug},
	{"word", "the reference is a word of the text (Infinite-Bench's KV)", best(word)},
	{"name", "the reference is a word in any case (Infinite-Bench's dialogue)", best(name)},
	{"first_integer", "the first run of digits is the reference (Infinite-Bench)", best(firstInteger)},
	{"first_number", "the first number equals the reference (Infinite-Bench's Math.Find)", best(firstNumber)},
	{"integers", "fraction of the references until the first wrong integer (Infinite-Bench's Math.Calc)", integers},
	{"last_integer", "the last word is the reference (Infinite-Bench's Code.Run)", best(lastInteger)},
	{"gsm8k", "the last number equals the reference (GSM8K)", best(GSM8K)},
	{"math", "the last \\boxed answer equals the reference (MATH)", best(Math)},
}

// Names returns the names of all metrics.
func Names() []string {
	var names []string
	for _, m := range metrics {
		names = append(names, m.Name)
	}
	return names
}

// Help describes each metric in a line.
func Help() string {
	var b strings.Builder
	for _, m := range metrics {
		fmt.Fprintf(&b, "  %-14s %s\n", m.Name, m.About)
	}
	return b.String()
}

// Lookup returns the metric of a name.
func Lookup(name string) (Metric, bool) {
	i := slices.IndexFunc(metrics, func(m Metric) bool { return m.Name == name })
	if i < 0 {
		return Metric{}, false
	}
	return metrics[i], true
}

// best returns a score against several references: the best of them.
func best(one func(text, want string) float64) func(string, Reference) float64 {
	return func(text string, r Reference) float64 {
		most := 0.0
		for _, a := range r.Answers {
			most = max(most, one(text, a))
		}
		return most
	}
}

func is(right bool) float64 {
	if right {
		return 1
	}
	return 0
}
