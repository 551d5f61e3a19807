package suite

import (
	"fmt"
	"io/fs"
	"strings"

	"github.com/shoal-llm/shoal/internal/eval/score"
)

// longBench2 asks for an answer in the form that the metric letter reads.
var longBench2 = Suite{Name: "longbench-v2", About: "multiple choice over texts of up to two million words: data.json",
	read: readLongBench2, Tasks: []Task{
		{"longbench_v2", "LongBench-v2", "letter", 128,
			"Read the text and answer the question.\n\n{context}\n\nQuestion: {input}\n(A) {A}\n(B) {B}\n(C) {C}\n(D) {D}\n\n" +
				"Answer in the form: \"The correct answer is (A)\".", false, false},
	}}

// readLongBench2 makes a set of each length: short, medium, long.
func readLongBench2(dir fs.FS, t *Task, limit int) ([]Question, error) {
	return array(dir, "data.json", limit, func(element []byte) (Question, error) {
		var raw struct {
			ID       texts  `json:"_id"`
			Length   string `json:"length"`
			Question string `json:"question"`
			Context  string `json:"context"`
			A        string `json:"choice_A"`
			B        string `json:"choice_B"`
			C        string `json:"choice_C"`
			D        string `json:"choice_D"`
			Answer   string `json:"answer"`
		}
		if err := object(element, &raw); err != nil {
			return Question{}, err
		}
		if err := need("question", raw.Question, "context", raw.Context, "choice_A", raw.A, "choice_B", raw.B,
			"choice_C", raw.C, "choice_D", raw.D); err != nil {
			return Question{}, err
		}
		if len(raw.Answer) != 1 || !strings.Contains("ABCD", raw.Answer) {
			return Question{}, fmt.Errorf("\"answer\" is %.20q: want A, B, C or D", raw.Answer)
		}
		prompt := fill(t.Prompt, "{context}", strings.TrimSpace(raw.Context), "{input}", strings.TrimSpace(raw.Question),
			"{A}", strings.TrimSpace(raw.A), "{B}", strings.TrimSpace(raw.B), "{C}", strings.TrimSpace(raw.C), "{D}", strings.TrimSpace(raw.D))
		return Question{Task: t, Set: raw.Length, ID: raw.ID.first(), Prompt: prompt, Ref: score.Reference{Answers: []string{raw.Answer}}}, nil
	})
}
