package eval

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/shoal-llm/shoal/internal/eval/score"
	"github.com/shoal-llm/shoal/internal/text/tokenizer"
)

// Question is one line of a LongBench or RULER file.
type Question struct {
	Input   string   // the question, or (RULER) the whole prompt
	Context string   // LongBench: the text that the question is about
	Lead    string   // RULER: answer_prefix, the first words of the answer
	Answers []string // references
	Classes []string // LongBench: all labels of a classification
	Set     string   // LongBench: dataset; RULER: task; may be empty
}

// ErrQuestions: a file of questions cannot be read.
var ErrQuestions = errors.New("eval: questions")

// ReadQuestions reads JSON lines with the fields of LongBench (context, input, answers, dataset) or
// RULER (input, outputs, answer_prefix, task).
func ReadQuestions(r io.Reader) ([]Question, error) {
	in := bufio.NewScanner(r)
	in.Buffer(nil, maxLine)
	var out []Question
	for n := 1; in.Scan(); n++ {
		if len(bytes.TrimSpace(in.Bytes())) == 0 {
			continue
		}
		q, err := parseQuestion(in.Bytes())
		if err != nil {
			return nil, fmt.Errorf("%w: line %d: %w", ErrQuestions, n, err)
		}
		out = append(out, q)
	}
	if err := in.Err(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrQuestions, err)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%w: the file is empty", ErrQuestions)
	}
	return out, nil
}

func parseQuestion(line []byte) (Question, error) {
	var raw struct {
		Input   string `json:"input"`
		Context string `json:"context"`
		Lead    string `json:"answer_prefix"`
		Dataset string `json:"dataset"`
		Task    string `json:"task"`
		Outputs texts  `json:"outputs"`
		Output  texts  `json:"output"`
		Answers texts  `json:"answers"`
		Answer  texts  `json:"answer"`
		Classes texts  `json:"all_classes"`
	}
	if err := json.Unmarshal(line, &raw); err != nil {
		return Question{}, fmt.Errorf("not a JSON object with texts in input, context and outputs or answers: %w", err)
	}
	q := Question{Input: raw.Input, Context: raw.Context, Lead: raw.Lead, Classes: raw.Classes, Set: cmp.Or(raw.Dataset, raw.Task)}
	for _, a := range []texts{raw.Outputs, raw.Answers, raw.Output, raw.Answer} {
		if len(a) > 0 {
			q.Answers = a
			break
		}
	}
	switch {
	case q.Input == "" && q.Context == "":
		return q, errors.New(`neither "input" nor "context" holds a text`)
	case len(q.Answers) == 0:
		return q, errors.New(`no reference in "outputs" or "answers"`)
	}
	return q, nil
}

type texts []string

func (t *texts) UnmarshalJSON(b []byte) error {
	var one string
	if json.Unmarshal(b, &one) == nil {
		if one != "" {
			*t = texts{one}
		}
		return nil
	}
	return json.Unmarshal(b, (*[]string)(t))
}

// QuestionConfig configures how questions are sent.
type QuestionConfig struct {
	Metric string // a name of package score
	// Template contains {context} and {input}. Default: both, separated by an empty line.
	Template  string
	Chat      *tokenizer.ChatTemplate // nil: plain completions
	MaxTokens int                     // per answer; default 64
	// MaxPrompt limits prompts by removing their middle, like LongBench; 0: no limit.
	MaxPrompt   int
	Policies    []Policy
	Concurrency int
	Progress    func(done, total int64)
}

// Answered is the result of one question under one policy.
type Answered struct {
	Line    int      `json:"line"` // line of the question, from 0
	Set     string   `json:"set,omitempty"`
	Policy  string   `json:"policy"`
	Prompt  int      `json:"prompt_tokens"`
	Score   float64  `json:"score"`
	Output  string   `json:"output"`
	Answers []string `json:"answers"`
}

// SendQuestions sends every question under every policy. Results are ordered by question, then by policy.
func SendQuestions(ctx context.Context, c *Client, tok *tokenizer.Tokenizer, questions []Question, cfg QuestionConfig) ([]Answered, error) {
	metric, ok := score.Lookup(cfg.Metric)
	if !ok {
		return nil, fmt.Errorf("%w: metric %q is unknown; known are %s", ErrQuestions, cfg.Metric, strings.Join(score.Names(), ", "))
	}
	cfg.MaxTokens, cfg.Concurrency = cmp.Or(cfg.MaxTokens, 64), cmp.Or(cfg.Concurrency, 4)
	if len(cfg.Policies) == 0 {
		cfg.Policies = []Policy{{Name: DefaultPolicy}}
	}
	total := len(questions) * len(cfg.Policies)
	out := make([]Answered, total)
	var done atomic.Int64
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(cfg.Concurrency)
	for i := range total {
		n, p := i/len(cfg.Policies), cfg.Policies[i%len(cfg.Policies)]
		group.Go(func() error {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			q := &questions[n]
			prompt, err := cfg.prompt(tok, q)
			if err != nil {
				return fmt.Errorf("question %d: %w", n+1, err)
			}
			a, err := c.Complete(ctx, prompt, cfg.MaxTokens, p.Spec)
			if err != nil {
				return fmt.Errorf("question %d, policy %s: %w", n+1, p.Name, err)
			}
			out[i] = Answered{Line: n, Set: q.Set, Policy: p.Name, Prompt: len(prompt),
				Score: metric.Score(a.Text, score.Reference{Answers: q.Answers, Classes: q.Classes}), Output: a.Text, Answers: q.Answers}
			if cfg.Progress != nil {
				cfg.Progress(done.Add(1), int64(total))
			}
			return nil
		})
	}
	return out, group.Wait()
}

func (cfg *QuestionConfig) prompt(tok *tokenizer.Tokenizer, q *Question) ([]int32, error) {
	form := cfg.Template
	if form == "" {
		form = "{context}\n\n{input}"
		if q.Context == "" || q.Input == "" {
			form = "{context}{input}"
		}
	}
	text := strings.NewReplacer("{context}", q.Context, "{input}", q.Input).Replace(form)
	return promptOf(tok, cfg.Chat, text, q.Lead, cfg.MaxPrompt)
}

// promptOf tokenizes a question and the first words of its answer: as one chat message, or plainly
// if chat is nil. Without a chat template most bounds the prompt, with one the message and its
// frame; 0: no bound. The middle of a longer one is removed.
func promptOf(tok *tokenizer.Tokenizer, chat *tokenizer.ChatTemplate, text, lead string, most int) ([]int32, error) {
	if chat == nil {
		head := tok.Encode("", true)
		return append(head, cutMiddle(tok.EncodeLiteral(text+lead), most-len(head), most > 0)...), nil
	}
	if most > 0 {
		around, err := renderMessage(tok, chat, "")
		if err != nil {
			return nil, err
		}
		if ids := tok.EncodeLiteral(text); len(ids) > most-len(around) {
			text = tok.Decode(cutMiddle(ids, most-len(around), true), false)
		}
	}
	ids, err := renderMessage(tok, chat, text)
	return append(ids, tok.EncodeLiteral(lead)...), err
}

// renderMessage renders one user message with the chat template.
func renderMessage(tok *tokenizer.Tokenizer, chat *tokenizer.ChatTemplate, text string) ([]int32, error) {
	r, err := chat.Render([]tokenizer.Message{{Role: "user", Content: text}}, tokenizer.RenderOptions{AddGenerationPrompt: true})
	if err != nil {
		return nil, err
	}
	var parts []tokenizer.Part
	for _, s := range r {
		parts = append(parts, tokenizer.Part(s))
	}
	return tok.TryEncode(context.Background(), parts, false)
}

// cutMiddle keeps the first and last most/2 tokens.
func cutMiddle(ids []int32, most int, cut bool) []int32 {
	if !cut || len(ids) <= most {
		return ids
	}
	most = max(2, most)
	return slices.Concat(ids[:most/2], ids[len(ids)-(most-most/2):])
}

// QuestionScore is the mean score of a policy on one set of questions, 0 to 100.
type QuestionScore struct {
	Policy    string  `json:"policy"`
	Set       string  `json:"set,omitempty"`
	Questions int     `json:"questions"`
	Score     float64 `json:"score"`
}

// SummarizeAnswers computes means by policy and set, in order of appearance.
func SummarizeAnswers(answers []Answered) []QuestionScore {
	var rows []QuestionScore
	for _, a := range answers {
		i := slices.IndexFunc(rows, func(r QuestionScore) bool { return r.Policy == a.Policy && r.Set == a.Set })
		if i < 0 {
			i = len(rows)
			rows = append(rows, QuestionScore{Policy: a.Policy, Set: a.Set})
		}
		rows[i].Questions++
		rows[i].Score += 100 * a.Score
	}
	for i := range rows {
		rows[i].Score /= float64(rows[i].Questions)
	}
	slices.SortStableFunc(rows, func(a, b QuestionScore) int { return strings.Compare(a.Set, b.Set) })
	return rows
}

func WriteAnswerTable(w io.Writer, metric string, rows []QuestionScore) {
	out := [][]string{{"policy", "set", "questions", metric}}
	for _, r := range rows {
		out = append(out, []string{r.Policy, cmp.Or(r.Set, "-"), fmt.Sprint(r.Questions), fmt.Sprintf("%.1f", r.Score)})
	}
	writeColumns(w, out)
}
