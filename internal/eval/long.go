package eval

import (
	"fmt"
	"slices"
	"strings"

	"github.com/shoal-llm/shoal/internal/eval/score"
	"github.com/shoal-llm/shoal/internal/eval/suite"
)

// LongName is the name of the suite of long answers.
const LongName = "long"

// LongTokens is the default number of tokens of a long answer, in tokens of models/elver.
const LongTokens = 2000

// longSuite has tasks whose answers outlast the ring of a cache policy. models/elver was trained for
// them. Numbers of two and three digits are one token each.
var longSuite = suite.Suite{Name: LongName,
	About: "answers of 2,000 tokens, generated: copy, sort, running sums (for models/elver)",
	Tasks: []suite.Task{
		{Name: "copy", Group: "copy", Metric: "until", Plain: true},
		{Name: "sort", Group: "sort", Metric: "until", Plain: true},
		{Name: "sums", Group: "sums", Metric: "until", Plain: true},
	}}

// LongHelp describes the suite in a line.
func LongHelp() string { return fmt.Sprintf("  %-14s %s\n", LongName, longSuite.About) }

// LongSuite returns the suite "long" and n questions of each of its tasks, with answers of about
// tokens tokens. The same seed gives the same questions.
//
//	copy  repeat a list of distinct numbers: the answer needs the whole prompt, in order
//	sort  numbers with a letter each, by number: the answer needs the whole prompt, in another order
//	sums  running sums modulo 100 of ten addends in turn: the answer needs a table at the prompt's start
func LongSuite(n, tokens int, seed uint64) (*suite.Suite, []suite.Question, error) {
	if tokens < 12 || tokens > LongTokens {
		return nil, nil, fmt.Errorf("%w: answers of %d tokens; want 12 to %d", ErrSuiteConfig, tokens, LongTokens)
	}
	s := longSuite
	s.Tasks = slices.Clone(s.Tasks)
	var all []suite.Question
	for i := range s.Tasks {
		t := &s.Tasks[i]
		t.MaxTokens = tokens + 2
		for index := range n {
			m := &maker{rng: newRNG(seed, t.Name, tokens, index)}
			prompt, answer := longSample(m, t.Name, tokens)
			all = append(all, suite.Question{Task: t, ID: fmt.Sprint(index), Prompt: prompt, Ref: score.Reference{Answers: []string{answer}}})
		}
	}
	return &s, all, nil
}

// longSample draws one question of a task, and its answer.
func longSample(m *maker, task string, tokens int) (prompt, answer string) {
	var list []string
	switch task {
	case "copy": // a space and a number are two tokens
		for _, v := range m.sample(1000, tokens/2) {
			list = append(list, fmt.Sprintf(" %03d", v))
		}
		answer = strings.Join(list, "")
		return "c" + answer + "\n=", answer
	case "sort": // a space, a number and a letter
		for _, v := range m.sample(1000, tokens/3) {
			list = append(list, fmt.Sprintf(" %03d%c", v, 'a'+m.below(26)))
		}
		prompt = "s" + strings.Join(list, "") + "\n="
		slices.Sort(list)
		return prompt, strings.Join(list, "")
	}
	var b strings.Builder
	var add [10]int
	b.WriteString("t")
	for i := range add {
		add[i] = m.below(10)
		fmt.Fprintf(&b, " %c%d", 'a'+i, add[i])
	}
	b.WriteString("\n")
	for _, v := range m.sample(1000, max(0, tokens-34)/2) { // a list without a question
		fmt.Fprintf(&b, " %03d", v)
	}
	b.WriteString("\n=")
	at := 0
	for i := range tokens / 3 {
		at = (at + add[i%10]) % 100
		list = append(list, fmt.Sprintf(" %c%02d", 'a'+i%10, at))
	}
	return b.String(), strings.Join(list, "")
}
