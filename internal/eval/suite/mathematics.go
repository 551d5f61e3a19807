package suite

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"

	"github.com/shoal-llm/shoal/internal/eval/score"
)

var gsm8k = Suite{Name: "gsm8k", About: "word problems of primary school: test.jsonl", read: readGSM8K, Tasks: []Task{
	{"gsm8k", "GSM8K", "gsm8k", 512, "Solve the problem step by step. End with \"####\" and the number.\n\nQuestion: {input}\nAnswer:",
		false, false},
}}

func readGSM8K(dir fs.FS, t *Task, limit int) ([]Question, error) {
	return lines(dir, "test.jsonl", limit, func(line []byte) (Question, error) {
		var raw struct {
			Question string `json:"question"`
			Answer   texts  `json:"answer"`
		}
		if err := object(line, &raw); err != nil {
			return Question{}, err
		}
		if err := need("question", raw.Question, "answer", raw.Answer.first()); err != nil {
			return Question{}, err
		}
		return Question{Task: t, Prompt: fill(t.Prompt, "{input}", raw.Question), Ref: score.Reference{Answers: raw.Answer}}, nil
	})
}

var math = Suite{Name: "math", About: "competition problems: test.jsonl (MATH-500, AIME), or folders SUBJECT/NUMBER.json (MATH)",
	read: readMath, Tasks: []Task{
		{"math", "MATH", "math", 1024, "Solve the problem step by step. Write the final answer in \\boxed{}.\n\nProblem: {input}\nSolution:",
			false, false},
	}}

// readMath makes a set of each level.
func readMath(dir fs.FS, t *Task, limit int) ([]Question, error) {
	q, err := lines(dir, "test.jsonl", limit, func(line []byte) (Question, error) { return problem(t, line) })
	if !errors.Is(err, fs.ErrNotExist) {
		return q, err
	}
	files, err := fs.Glob(dir, "*/*.json")
	if err == nil && len(files) == 0 {
		files, err = fs.Glob(dir, "*/*/*.json") // test/SUBJECT/NUMBER.json
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrData, err)
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("%w: neither test.jsonl nor SUBJECT/NUMBER.json: %w", ErrData, fs.ErrNotExist)
	}
	slices.Sort(files)
	c := collector{limit: limit}
	for _, name := range files {
		text, err := whole(dir, name)
		if err != nil {
			return nil, err
		}
		q, err := problem(t, text)
		more := false
		if err == nil {
			q.ID = path.Join(path.Base(path.Dir(name)), path.Base(name))
			more, err = c.add(q)
		}
		if err != nil {
			return nil, fmt.Errorf("%w: %s: %w", ErrData, name, err)
		}
		if !more {
			break
		}
	}
	return c.questions, nil
}

func problem(t *Task, raw []byte) (Question, error) {
	var p struct {
		ID       texts  `json:"unique_id"`
		Problem  string `json:"problem"`
		Solution string `json:"solution"`
		Answer   texts  `json:"answer"`
		Level    texts  `json:"level"`
	}
	if err := object(raw, &p); err != nil {
		return Question{}, err
	}
	boxed, _ := score.Boxed(p.Solution)
	answer := cmp.Or(p.Answer.first(), boxed)
	if err := need("problem", p.Problem, "answer (or \\boxed{} in \"solution\")", answer); err != nil {
		return Question{}, err
	}
	level := p.Level.first()
	if len(level) == 1 {
		level = "Level " + level
	}
	return Question{Task: t, Set: level, ID: p.ID.first(), Prompt: fill(t.Prompt, "{input}", p.Problem),
		Ref: score.Reference{Answers: []string{answer}}}, nil
}

// whole reads a file of at most maxRecord bytes.
func whole(dir fs.FS, name string) ([]byte, error) {
	f, err := dir.Open(name)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrData, err)
	}
	defer f.Close()
	text, err := io.ReadAll(&allowance{in: f, left: maxRecord})
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrData, name, err)
	}
	return text, nil
}
