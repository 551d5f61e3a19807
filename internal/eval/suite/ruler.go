package suite

import (
	"errors"
	"io/fs"

	"github.com/shoal-llm/shoal/internal/eval/score"
)

var ruler = Suite{Name: "ruler", About: "files of RULER's generators: NAME/validation.jsonl or NAME.jsonl", read: readRuler, Tasks: []Task{
	{"niah_single_1", "Retrieval", "contains", 128, "{input}", false, false},
	{"niah_single_2", "Retrieval", "contains", 128, "{input}", false, false},
	{"niah_single_3", "Retrieval", "contains", 128, "{input}", false, false},
	{"niah_multikey_1", "Retrieval", "contains", 128, "{input}", false, false},
	{"niah_multikey_2", "Retrieval", "contains", 128, "{input}", false, false},
	{"niah_multikey_3", "Retrieval", "contains", 128, "{input}", false, false},
	{"niah_multivalue", "Retrieval", "contains", 128, "{input}", false, false},
	{"niah_multiquery", "Retrieval", "contains", 128, "{input}", false, false},
	{"vt", "MH Tracing", "contains", 30, "{input}", false, false},
	{"cwe", "Aggregation", "contains", 120, "{input}", false, false},
	{"fwe", "Aggregation", "contains", 50, "{input}", false, false},
	{"qa_1", "QA", "any", 32, "{input}", false, false},
	{"qa_2", "QA", "any", 32, "{input}", false, false},
}}

func readRuler(dir fs.FS, t *Task, limit int) ([]Question, error) {
	parse := func(line []byte) (Question, error) {
		var raw struct {
			Index   texts  `json:"index"`
			Input   string `json:"input"`
			Outputs texts  `json:"outputs"`
			Lead    string `json:"answer_prefix"`
		}
		if err := object(line, &raw); err != nil {
			return Question{}, err
		}
		if err := need("input", raw.Input, "outputs", raw.Outputs.first()); err != nil {
			return Question{}, err
		}
		return Question{Task: t, ID: raw.Index.first(), Prompt: raw.Input, Lead: raw.Lead, Ref: score.Reference{Answers: raw.Outputs}}, nil
	}
	for _, name := range []string{t.Name + "/validation.jsonl", t.Name + "/test.jsonl"} {
		q, err := lines(dir, name, limit, parse)
		if !errors.Is(err, fs.ErrNotExist) {
			return q, err
		}
	}
	return lines(dir, t.Name+".jsonl", limit, parse)
}
