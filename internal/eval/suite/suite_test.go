package suite

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/shoal-llm/shoal/internal/eval/score"
)

// TestStandIns: the files that come with the package can be read, every task has one, and the right
// answer gets the full score.
func TestStandIns(t *testing.T) {
	for _, s := range suites {
		for _, task := range s.Tasks {
			if _, ok := score.Lookup(task.Metric); !ok || task.MaxTokens < 1 || task.Group == "" ||
				!strings.Contains(task.Prompt, "{input}") && !strings.Contains(task.Prompt, "{context}") {
				t.Errorf("%s %s: metric %q, %d tokens, group %q", s.Name, task.Name, task.Metric, task.MaxTokens, task.Group)
			}
			list, err := s.Load(s.StandIns(), []string{task.Name}, 0)
			if err != nil {
				t.Error(err)
				continue
			}
			seen := map[string]bool{}
			for _, q := range list {
				answer := right(&q)
				if q.Score(answer) < 0.999 || q.Score("?") != 0 {
					t.Errorf("%s %s %s: %q scores %v, a question mark %v", s.Name, task.Name, q.ID, answer, q.Score(answer), q.Score("?"))
				}
				if strings.Contains(q.Prompt, "{context}") || strings.Contains(q.Prompt, "{input}") || len(q.Prompt) < 30 || seen[q.ID] {
					t.Errorf("%s %s %s: prompt %.80q", s.Name, task.Name, q.ID, q.Prompt)
				}
				seen[q.ID] = true
			}
		}
		if some, err := s.Load(s.StandIns(), nil, 1); err != nil || len(some) != len(s.Tasks) {
			t.Errorf("%s: %d questions of %d tasks with a limit of 1: %v", s.Name, len(some), len(s.Tasks), err)
		}
	}
}

// right returns an answer with the reference in the form that the metric reads.
func right(q *Question) string {
	all := q.Ref.Answers
	switch q.Task.Metric {
	case "letter":
		return "The correct answer is (" + all[0] + ")"
	case "option":
		return all[1]
	case "debug":
		return "The answer is: " + all[0]
	case "gsm8k":
		return "We get 17, so " + all[0]
	case "math":
		return `It is \boxed{` + all[0] + "}."
	case "contains", "integers":
		return strings.Join(all, " ")
	}
	return all[0]
}

// TestForms reads forms that the stand-ins do not have.
func TestForms(t *testing.T) {
	dir := fstest.MapFS{
		"hotpotqa_e.jsonl":                 {Data: []byte(`{"input":"Who?","context":"Ann has {input}.","answers":["Ann"],"all_classes":null}` + "\n\n")},
		"vt.jsonl":                         {Data: []byte(`{"index":7,"input":"Find it.","outputs":["A","B"],"length":5}`)},
		"qa_1/test.jsonl":                  {Data: []byte(`{"input":"Q?","outputs":["A"]}`)},
		"test/algebra/2.json":              {Data: []byte(`{"problem":"p2","level":"Level 3","type":"Algebra","solution":"so \\boxed{2}"}`)},
		"test/algebra/10.json":             {Data: []byte(`{"problem":"p10","level":"Level 1","type":"Algebra","solution":"so \\boxed{10}"}`)},
		"code_debug.jsonl":                 {Data: []byte(`{"id":0,"context":"c","input":"","answer":["f2","B"],"options":["f1","f2","f3","f4"]}`)},
		"math_calc.jsonl":                  {Data: []byte(`{"id":0,"context":"1 + 2","input":"","answer":[3],"options":[]}`)},
		"test/counting/only_a_folder/x.md": {Data: nil},
	}
	for _, c := range []struct {
		suite, task string
		want        string
	}{
		{"longbench", "hotpotqa", `1 "" [Ann]`},
		{"ruler", "vt", `7 "" [A B]`},
		{"ruler", "qa_1", `1 "" [A]`},
		{"math", "math", `algebra/10.json "Level 1" [10]; algebra/2.json "Level 3" [2]`},
		{"infinitebench", "code_debug", `0 "" [f2 B]`},
		{"infinitebench", "math_calc", `0 "" [3]`},
	} {
		s, err := Find(c.suite)
		if err != nil {
			t.Fatal(err)
		}
		list, err := s.Load(dir, []string{c.task}, 0)
		if err != nil {
			t.Error(err)
			continue
		}
		var got []string
		for _, q := range list {
			got = append(got, fmt.Sprintf("%s %q %v", q.ID, q.Set, q.Ref.Answers))
		}
		if text := strings.Join(got, "; "); text != c.want {
			t.Errorf("%s %s: %s, want %s", c.suite, c.task, text, c.want)
		}
		if c.task == "hotpotqa" && !strings.Contains(list[0].Prompt, "Ann has {input}.") {
			t.Errorf("a context was filled in: %q", list[0].Prompt)
		}
	}
	trec, err := longBench.Task("trec")
	if err != nil {
		t.Fatal(err)
	}
	q := Question{Task: trec, Ref: score.Reference{Answers: []string{"Place"}, Classes: []string{"Place", "Person"}}}
	if q.Score("\nPlace\nType: Person") != 1 {
		t.Error("only the first line counts")
	}
}

func TestErrors(t *testing.T) {
	for _, c := range []struct {
		suite, file, data, says string
	}{
		{"gsm8k", "test.jsonl", "", "no question"},
		{"gsm8k", "test.jsonl", "{\"question\":\"q\",\"answer\":\"#### 1\"}\n{\"question\":\"q\"}\n",
			"test.jsonl, line 2: \"answer\" is missing"},
		{"gsm8k", "test.jsonl", "[]", "line 1: not the expected JSON object"},
		{"gsm8k", "test.jsonl", strings.Repeat("x", maxRecord+1), "line 1: bufio.Scanner: token too long"},
		{"ruler", "vt.jsonl", `{"input":"i","outputs":[true]}`, `vt.jsonl, line 1: not the expected JSON object: "true" is not a text`},
		{"longbench", "lcc.jsonl", `{"input":"i","answers":["x"]}`, `"context" is missing`},
		{"longbench-v2", "data.json", "{}", "not a JSON array"},
		{"longbench-v2", "data.json", "[", "after byte"},
		{"longbench-v2", "data.json", `[{"question":"q","context":"c","choice_A":"1","choice_B":"2","choice_C":"3","choice_D":"4","answer":"E"}]`, `question 1, before byte`},
		{"longbench-v2", "data.json", `[{"question":"` + strings.Repeat("x", maxRecord+4096), "a question has more than"},
		{"infinitebench", "longbook_choice_eng.jsonl", `{"context":"c","answer":["x"],"options":["a","b"]}`, "2 texts: want 4"},
		{"infinitebench", "longbook_choice_eng.jsonl", `{"context":"c","answer":["xyz"],"options":["a","b","c","d"]}`, "none of the options"},
		{"math", "algebra/1.json", `{"problem":"p","solution":"no box"}`, `algebra/1.json: "answer (or`},
		{"math", "algebra/1.txt", ``, "neither test.jsonl nor"},
		{"longbench", "other.jsonl", "{}", "no file of longbench"},
	} {
		s, err := Find(c.suite)
		if err != nil {
			t.Fatal(err)
		}
		_, err = s.Load(fstest.MapFS{c.file: {Data: []byte(c.data)}}, nil, 0)
		if c.suite == "math" {
			_, err = s.Load(fstest.MapFS{c.file: {Data: []byte(c.data)}}, []string{"math"}, 0)
		}
		if !errors.Is(err, ErrData) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s %s %.40q: %v, want %q", c.suite, c.file, c.data, err, c.says)
		}
	}
	if _, err := Find("nothing"); !errors.Is(err, ErrSuite) || !strings.Contains(err.Error(), "longbench") {
		t.Error(err)
	}
	if _, err := ruler.Load(fstest.MapFS{}, []string{"nothing"}, 0); !errors.Is(err, ErrSuite) ||
		!strings.Contains(err.Error(), "niah_single_1") {
		t.Error(err)
	}
	if _, err := ruler.Load(fstest.MapFS{}, []string{"vt"}, 0); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

// FuzzLoad: every decoder returns questions or an error that names the file.
func FuzzLoad(f *testing.F) {
	for _, s := range suites {
		for i := range s.Tasks {
			for _, name := range []string{"test.jsonl", "data.json", s.Tasks[i].Name + ".jsonl", s.Tasks[i].Name + "/validation.jsonl"} {
				if data, err := fs.ReadFile(s.StandIns(), name); err == nil {
					f.Add(data[:min(len(data), 5000)])
				}
			}
		}
	}
	f.Add([]byte(`{"problem":"p","solution":"\\boxed{1}","answer":7,"level":1}`))
	f.Add([]byte(`[{"_id":1},`))
	f.Fuzz(func(t *testing.T, data []byte) {
		file := &fstest.MapFile{Data: data}
		for _, s := range suites {
			for i := range s.Tasks {
				task := &s.Tasks[i]
				dir := fstest.MapFS{"test.jsonl": file, "data.json": file, task.Name + ".jsonl": file}
				if s.Name == "math" {
					dir = fstest.MapFS{"a/1.json": file}
				}
				list, err := s.Load(dir, []string{task.Name}, 2)
				if (err == nil) != (len(list) > 0) || len(list) > 2 || err != nil && !errors.Is(err, ErrData) {
					t.Errorf("%s %s: %d questions, %v", s.Name, task.Name, len(list), err)
				}
				for _, q := range list {
					if q.Prompt == "" || len(q.Ref.Answers) == 0 || q.ID == "" {
						t.Errorf("%s %s: %+v", s.Name, task.Name, q)
					}
				}
			}
		}
	})
}
