package suite

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/shoal-llm/shoal/internal/eval/score"
)

// Suite is a benchmark.
type Suite struct {
	Name  string
	About string
	Tasks []Task
	read  func(dir fs.FS, t *Task, limit int) ([]Question, error)
}

// Task is one kind of question of a suite.
type Task struct {
	Name      string
	Group     string // heading of its column in a paper's table
	Metric    string // a name of package score
	MaxTokens int    // of an answer
	Prompt    string // with {context} and {input}
	Plain     bool   // sent without a chat template, as the benchmark does
	FirstLine bool   // only the first line of the answer counts
}

// Question is one question, ready to be sent.
type Question struct {
	Task   *Task
	Set    string // a part of the task that has its own row, such as "short"; may be empty
	ID     string // as in the file, or the number of its line
	Prompt string
	Lead   string // first words of the answer, sent after the prompt
	Ref    score.Reference
}

// Score returns the score of an answer, 0 to 1.
func (q *Question) Score(text string) float64 {
	if q.Task.FirstLine {
		text, _, _ = strings.Cut(strings.TrimLeft(text, "\n"), "\n")
	}
	m, ok := score.Lookup(q.Task.Metric)
	if !ok {
		panic("suite: unknown metric " + q.Task.Metric)
	}
	return m.Score(text, q.Ref)
}

var (
	// ErrSuite: there is no such suite or task.
	ErrSuite = errors.New("suite: unknown name")
	// ErrData: a file of a suite cannot be read.
	ErrData = errors.New("suite: unusable file")
)

var suites = []*Suite{&longBench, &longBench2, &infiniteBench, &ruler, &gsm8k, &math}

// Names returns the names of all suites.
func Names() []string {
	var names []string
	for _, s := range suites {
		names = append(names, s.Name)
	}
	return names
}

// Help describes each suite in a line.
func Help() string {
	var b strings.Builder
	for _, s := range suites {
		fmt.Fprintf(&b, "  %-14s %s\n", s.Name, s.About)
	}
	return b.String()
}

// Find returns the suite of a name.
func Find(name string) (*Suite, error) {
	for _, s := range suites {
		if s.Name == name {
			return s, nil
		}
	}
	return nil, fmt.Errorf("%w %q; known are %s", ErrSuite, name, strings.Join(Names(), ", "))
}

// Task returns the task of a name.
func (s *Suite) Task(name string) (*Task, error) {
	i := slices.IndexFunc(s.Tasks, func(t Task) bool { return t.Name == name })
	if i < 0 {
		return nil, fmt.Errorf("%w: %s has no task %q; known are %s", ErrSuite, s.Name, name, strings.Join(s.TaskNames(), ", "))
	}
	return &s.Tasks[i], nil
}

// TaskNames returns the names of the suite's tasks.
func (s *Suite) TaskNames() []string {
	var names []string
	for _, t := range s.Tasks {
		names = append(names, t.Name)
	}
	return names
}

//go:embed standins
var embedded embed.FS

// StandIns returns the folder of small files that comes with the package.
func (s *Suite) StandIns() fs.FS {
	dir, err := fs.Sub(embedded, "standins/"+s.Name)
	if err != nil {
		panic(err) // the name is a constant
	}
	return dir
}

// Load reads the questions of the named tasks, or of all whose files exist, at most limit of each
// task (0: all). Errors wrap ErrSuite or ErrData, and name file and line.
func (s *Suite) Load(dir fs.FS, tasks []string, limit int) ([]Question, error) {
	named := len(tasks) > 0
	if !named {
		tasks = s.TaskNames()
	}
	var all []Question
	for _, name := range tasks {
		t, err := s.Task(name)
		if err != nil {
			return nil, err
		}
		q, err := s.read(dir, t, limit)
		if !named && errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		all = append(all, q...)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%w: the folder has no file of %s; expected is one of %s", ErrData, s.Name, strings.Join(s.TaskNames(), ", "))
	}
	return all, nil
}

// fill writes the parts of a question into a prompt. It replaces in one pass, so a context that
// contains {input} is not changed.
func fill(form string, pairs ...string) string { return strings.NewReplacer(pairs...).Replace(form) }
