package suite

import (
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/shoal-llm/shoal/internal/eval/score"
)

const (
	hidden  = "Find the information that is hidden in the text.\n\n{context}\n\n{input}"
	choices = "Read the text and answer the question with a letter.\n\n{context}\n\nQuestion: {input}\nA. {A}\nB. {B}\nC. {C}\nD. {D}\nThe " +
		"letter of the answer is: "
)

var infiniteBench = Suite{Name: "infinitebench",
	About: "retrieval, books, dialogue, code and arithmetic of 100,000 tokens and more: NAME.jsonl", read: readInfiniteBench, Tasks: []Task{
		{"passkey", "Passkey", "first_integer", 6, hidden, false, false},
		{"number_string", "Number", "first_integer", 12, hidden, false, false},
		{"kv_retrieval", "KV", "word", 50, "Extract the value of the key in the JSON object.\n\n{context}\n\n{input}", false, false},
		{"longbook_sum_eng", "En.Sum", "rouge_lsum", 1200, "Summarize the book.\n\n{context}\n\nSummary:", false, false},
		{"longbook_choice_eng", "En.MC", "option", 40, choices, false, false},
		{"longbook_qa_eng", "En.QA", "f1", 40, "Read the book and answer the question in a few words.\n\n{context}\n\nQuestion: {input}\nAnswer:",
			false, false},
		{"longbook_qa_chn", "Zh.QA", "f1_zh", 40, storyZh, false, false},
		{"longdialogue_qa_eng", "En.Dia", "name", 40,
			"In the dialogue one name is replaced by $$MASK$$. Find the name.\n\n{context}\n\nThe name that $$MASK$$ replaces is: ", false, false},
		{"math_find", "Math.Find", "first_number", 3, "{input}\n\n{context}\n\nAnswer: ", false, false},
		{"math_calc", "Math.Calc", "integers", 30000,
			"Write the intermediate results of the calculation, one after each operation.\n\n{context}\n\nResults:", false, false},
		{"code_run", "Code.Run", "last_integer", 5,
			"Find the return value of the call.\n\n{context}\n\n{input}\nThe return value is: ", false, false},
		{"code_debug", "Code.Debug", "debug", 5,
			"One of these functions contains a deliberate error. Find it.\n\n{context}\n\nA. {A}\nB. {B}\nC. {C}\nD. {D}\nThe answer is:",
			false, false},
	}}

func readInfiniteBench(dir fs.FS, t *Task, limit int) ([]Question, error) {
	return lines(dir, t.Name+".jsonl", limit, func(line []byte) (Question, error) {
		var raw struct {
			ID      texts    `json:"id"`
			Context string   `json:"context"`
			Input   string   `json:"input"`
			Answer  texts    `json:"answer"`
			Options []string `json:"options"`
		}
		if err := object(line, &raw); err != nil {
			return Question{}, err
		}
		if err := need("context", raw.Context, "answer", raw.Answer.first()); err != nil {
			return Question{}, err
		}
		answers, options := raw.Answer, make([]string, 4)
		if t.Metric == "option" || t.Metric == "debug" {
			if len(raw.Options) != 4 {
				return Question{}, fmt.Errorf("\"options\" has %d texts: want 4", len(raw.Options))
			}
			copy(options, raw.Options)
			// The letter of the answer comes in addition to its text.
			if i := slices.Index(options, answers[0]); i >= 0 {
				answers = texts{answers[0], "ABCD"[i : i+1]}
			} else if !strings.Contains("ABCD", answers[len(answers)-1]) {
				return Question{}, fmt.Errorf("\"answer\" %.40q is none of the options", answers[0])
			}
		}
		prompt := fill(t.Prompt, "{context}", raw.Context, "{input}", raw.Input, "{A}", options[0], "{B}",
			options[1], "{C}", options[2], "{D}", options[3])
		return Question{Task: t, ID: raw.ID.first(), Prompt: prompt, Ref: score.Reference{Answers: answers}}, nil
	})
}
