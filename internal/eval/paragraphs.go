package eval

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

// Paragraph is a text with questions about it.
type Paragraph struct {
	Text      string
	Questions []ParagraphQuestion
}

// ParagraphQuestion is a question that a paragraph answers.
type ParagraphQuestion struct {
	Question string
	Answers  []string
}

const (
	maxParagraphs     = 64 << 20 // bytes of a file of paragraphs
	maxParagraphCount = 1 << 18
)

// ErrParagraphs: a file of paragraphs cannot be used.
var ErrParagraphs = errors.New("eval: paragraphs")

// ReadParagraphs reads a file of SQuAD, which RULER uses, or JSON lines with "context", "question"
// and "answers". Questions without an answer are left out.
func ReadParagraphs(path string) ([]Paragraph, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrParagraphs, err)
	}
	defer f.Close()
	p, err := parseParagraphs(f)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrParagraphs, path, err)
	}
	return p, nil
}

func parseParagraphs(in io.Reader) ([]Paragraph, error) {
	text, err := io.ReadAll(io.LimitReader(in, maxParagraphs+1))
	if err != nil {
		return nil, err
	}
	if len(text) > maxParagraphs {
		return nil, fmt.Errorf("the file has more than %d bytes", maxParagraphs)
	}
	list, err := parseSQuAD(text)
	if errors.Is(err, errNotSQuAD) {
		list, err = parseParagraphLines(text)
	}
	if err != nil {
		return nil, err
	}
	questions := 0
	for _, p := range list {
		questions += len(p.Questions)
	}
	if len(list) < 2 || questions == 0 {
		return nil, fmt.Errorf("%d paragraphs with %d questions: want at least two and one", len(list), questions)
	}
	return list, nil
}

var errNotSQuAD = errors.New("no list \"data\" of SQuAD")

func parseSQuAD(text []byte) ([]Paragraph, error) {
	var file struct {
		Data []struct {
			Paragraphs []struct {
				Context string `json:"context"`
				Asked   []struct {
					Question string `json:"question"`
					Answers  []struct {
						Text string `json:"text"`
					} `json:"answers"`
				} `json:"qas"`
			} `json:"paragraphs"`
		} `json:"data"`
	}
	if json.Unmarshal(text, &file) != nil || len(file.Data) == 0 {
		return nil, errNotSQuAD
	}
	var out []Paragraph
	for _, d := range file.Data {
		for _, p := range d.Paragraphs {
			if strings.TrimSpace(p.Context) == "" {
				return nil, fmt.Errorf("paragraph %d has no text in \"context\"", len(out)+1)
			}
			one := Paragraph{Text: p.Context}
			for _, a := range p.Asked {
				q := ParagraphQuestion{Question: a.Question}
				for _, x := range a.Answers {
					q.Answers = append(q.Answers, x.Text)
				}
				one.add(q)
			}
			if out = append(out, one); len(out) > maxParagraphCount {
				return nil, fmt.Errorf("more than %d paragraphs", maxParagraphCount)
			}
		}
	}
	return out, nil
}

// parseParagraphLines reads JSON lines. Lines with the same context are one paragraph.
func parseParagraphLines(text []byte) ([]Paragraph, error) {
	in := bufio.NewScanner(bytes.NewReader(text))
	in.Buffer(nil, maxParagraphs)
	var out []Paragraph
	at := map[string]int{}
	for n := 1; in.Scan(); n++ {
		if len(bytes.TrimSpace(in.Bytes())) == 0 {
			continue
		}
		var raw struct {
			Context  string `json:"context"`
			Question string `json:"question"`
			Answers  texts  `json:"answers"`
		}
		if err := json.Unmarshal(in.Bytes(), &raw); err != nil {
			return nil, fmt.Errorf("line %d: %w: want a file of SQuAD, or lines with context, question and answers", n, err)
		}
		if strings.TrimSpace(raw.Context) == "" {
			return nil, fmt.Errorf("line %d: no text in \"context\"", n)
		}
		i, ok := at[raw.Context]
		if !ok {
			i = len(out)
			at[raw.Context] = i
			if out = append(out, Paragraph{Text: raw.Context}); len(out) > maxParagraphCount {
				return nil, fmt.Errorf("line %d: more than %d paragraphs", n, maxParagraphCount)
			}
		}
		out[i].add(ParagraphQuestion{raw.Question, raw.Answers})
	}
	return out, in.Err()
}

// add takes a question that has an answer.
func (p *Paragraph) add(q ParagraphQuestion) {
	answers := q.Answers[:0:0]
	for _, a := range q.Answers {
		if strings.TrimSpace(a) != "" {
			answers = append(answers, a)
		}
	}
	if q.Question != "" && len(answers) > 0 {
		p.Questions = append(p.Questions, ParagraphQuestion{q.Question, answers})
	}
}
