package eval

import (
	"cmp"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/shoal-llm/shoal/internal/text/tokenizer"
)

// MinLength and MaxLength are the bounds of a prompt's length in tokens.
const (
	MinLength = 512
	MaxLength = 1 << 20
)

var (
	// ErrTask: the task does not exist, or this model does not support it.
	ErrTask = errors.New("eval: unknown task")
	// ErrLength: no prompt of exactly the requested length was found.
	ErrLength = errors.New("eval: prompt length")
)

// Sample is a prompt with the expected answer.
type Sample struct {
	Task          string
	Length, Index int
	Prompt        []int32 // exactly Length tokens, including the beginning-of-sequence token
	// Answer has the tokens of the correct continuation. Only those of [From,To) are scored: not
	// the lead that a chat model writes first, and not the token that ends the answer (a full stop
	// or quotation mark with its line break).
	Answer   []int32
	From, To int
	Text     string   // the answer as text
	Wanted   []string // the values in the answer
	AnyOrder bool
	AnyOf    bool    // any of Wanted is correct, anywhere in the continuation
	Depth    float64 // relative position of the needle in the haystack, 0 to 1; -1: not a single needle
	// Given is the number of answer tokens that replace the model's own (RunTogether only).
	// ByTokens compares tokens instead of text, like the reference implementation.
	Given    int
	ByTokens bool
}

// MaxTokens returns the number of tokens to request from a server.
func (s *Sample) MaxTokens() int {
	if s.AnyOf {
		return len(s.Answer) + 30 // RULER's 32 for question answering
	}
	return len(s.Answer) + 2
}

// Generator creates samples. It is safe for concurrent use.
type Generator struct {
	tok                *tokenizer.Tokenizer
	bos                []int32
	chatHead, chatTail []int32 // around the message; nil: no chat template
	seed               uint64
	noise, code, prose *stream
	newline            []bool // the token ends with a line break
	corpus             string
	paragraphs         []Paragraph
}

// stream is tokenized text with the positions where a cut may start.
type stream struct {
	ids    []int32
	starts []int
}

// NewGenerator prepares the haystacks. chat may be nil; if corpus is nil, it uses OwnCorpus.
func NewGenerator(tok *tokenizer.Tokenizer, chat *tokenizer.ChatTemplate, corpus *Corpus, seed uint64) (*Generator, error) {
	if corpus == nil {
		corpus = OwnCorpus()
	}
	g := &Generator{tok: tok, seed: seed, bos: tok.Encode("", true), newline: make([]bool, tok.VocabSize()), corpus: corpus.Name}
	for id := range g.newline {
		b := tok.TokenBytes(int32(id))
		g.newline[id] = len(b) > 0 && b[len(b)-1] == '\n' && !tok.IsSpecial(int32(id))
	}
	g.code, g.prose = g.stream(corpus.Code), g.stream(corpus.English)
	g.noise = g.stream(noiseText)
	is := tok.EncodeLiteral("is green.")
	g.noise.starts = []int{0}
	for i, id := range g.noise.ids[:len(g.noise.ids)-1] {
		if id == is[len(is)-1] { // after each full stop
			g.noise.starts = append(g.noise.starts, i+1)
		}
	}
	if chat != nil {
		if err := g.chatAround(chat); err != nil {
			return nil, err
		}
	}
	return g, nil
}

// SetParagraphs sets the paragraphs of the task qa. They become a part of the corpus's identity.
func (g *Generator) SetParagraphs(list []Paragraph) {
	h := fnv.New32a()
	for _, p := range list {
		_, _ = h.Write([]byte(p.Text + "\x00")) // a hash write never fails
		for _, q := range p.Questions {
			_, _ = h.Write([]byte(q.Question + "\x00" + strings.Join(q.Answers, "\x00") + "\x00"))
		}
	}
	g.paragraphs, g.corpus = list, fmt.Sprintf("%s+qa-%08x", g.corpus, h.Sum32())
}

// Corpus returns the identity of the haystack text.
func (g *Generator) Corpus() string { return g.corpus }

func (g *Generator) Seed() uint64 { return g.seed }

func (g *Generator) stream(s string) *stream {
	t := &stream{ids: g.tok.EncodeLiteral(s), starts: []int{0}}
	for i, id := range t.ids[:max(0, len(t.ids)-1)] {
		if g.newline[id] {
			t.starts = append(t.starts, i+1)
		}
	}
	return t
}

// chatAround sets chatHead and chatTail: the template's tokens before and after one user message.
func (g *Generator) chatAround(chat *tokenizer.ChatTemplate) error {
	const mark = "Some words that no template holds."
	out, err := chat.Render([]tokenizer.Message{{Role: "user", Content: mark}}, tokenizer.RenderOptions{AddGenerationPrompt: true})
	if err != nil {
		return fmt.Errorf("eval: the chat template refuses a plain message: %w", err)
	}
	before, after, ok := strings.Cut(out.String(), mark)
	if !ok {
		return errors.New("eval: the chat template does not print the message")
	}
	g.chatHead, g.chatTail = g.tok.Encode(before, false), g.tok.Encode(after, false)
	return nil
}

// Sample creates sample number index of a task, with a prompt of exactly length tokens. It
// depends only on the seed, the three arguments, the tokenizer and the corpus.
//
// Errors: ErrTask, ErrLength.
func (g *Generator) Sample(name string, length, index int) (*Sample, error) {
	i := slices.IndexFunc(tasks, func(t task) bool { return t.name == name })
	if i < 0 {
		return nil, fmt.Errorf("%w %q; known are %s", ErrTask, name, strings.Join(TaskNames(), ", "))
	}
	t := &tasks[i]
	if t.chat && g.chatTail == nil {
		return nil, fmt.Errorf("%w: %s needs a chat template, and the model has none", ErrTask, name)
	}
	if length < MinLength || length > MaxLength {
		return nil, fmt.Errorf("%w: %d tokens; want %d to %d", ErrLength, length, MinLength, MaxLength)
	}
	m := &maker{rng: newRNG(g.seed, name, length, index), length: length, shrink: 1, paragraphs: g.paragraphs}
	for range 200 {
		p := t.make(m)
		if prompt := g.prompt(m, t, &p); prompt != nil {
			s := &Sample{Task: name, Length: length, Index: index, Prompt: prompt, Text: p.answer, Wanted: p.wanted,
				AnyOrder: p.anyOrder, AnyOf: p.anyOf, Depth: p.depth}
			g.answer(s, t, &p)
			return s, nil
		}
	}
	return nil, fmt.Errorf("%w: no %s prompt of exactly %d tokens was found in 200 attempts", ErrLength, name, length)
}

func (g *Generator) answer(s *Sample, t *task, p *parts) {
	if !t.chat {
		s.Answer = g.tok.EncodeLiteral(p.given)
		s.From, s.Given = len(s.Answer), len(s.Answer)
		s.Answer = append(s.Answer, g.tok.EncodeLiteral(p.answer+"\n")...)
		s.To, s.ByTokens = len(s.Answer)-1, s.Given > 0
		return
	}
	lead := strings.TrimLeft(p.lead, " ")
	s.Text = lead + p.answer
	s.Answer = g.tok.EncodeLiteral(lead)
	s.From = len(s.Answer)
	s.Answer = append(s.Answer, g.tok.EncodeLiteral(p.answer)...)
	s.To = len(s.Answer)
	if eos, ok := g.tok.EOS(); ok {
		s.Answer = append(s.Answer, eos)
	}
}

// prompt assembles p with haystacks until the prompt has exactly m.length tokens when its text is
// tokenized again, since words that meet at a cut may become one token. It returns nil on failure;
// too long lists are then shortened for the next attempt.
func (g *Generator) prompt(m *maker, t *task, p *parts) []int32 {
	head, tail := g.bos, []int32(nil)
	ask := "\nQuestion: " + p.ask + "\nAnswer:" + p.lead
	if t.chat {
		head, tail, ask = g.chatHead, g.chatTail, "\n"+p.ask
	}
	intro, question := g.tok.EncodeLiteral(p.intro), g.tok.EncodeLiteral(ask)
	events := make([][]int32, len(p.events))
	fixed := len(head) + len(tail) + len(intro) + len(question)
	order := make([]int, len(events))
	for i, e := range p.events {
		events[i], order[i] = g.tok.EncodeLiteral(e.text), i
		fixed += len(events[i])
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(p.events[a].at, p.events[b].at) })
	for _, delta := range []int{0, 1, 2, 3, -1, 4, 5, -2, 6, 7} {
		n := m.length + delta - fixed
		if n < 0 {
			m.shrink *= 0.93
			return nil
		}
		hay := g.hay(m, n, p.hay)
		cuts := g.cuts(hay)
		body, at := slices.Clone(intro), 0
		for _, i := range order {
			to := 0
			if len(cuts) > 0 {
				k, _ := slices.BinarySearchFunc(cuts, p.events[i].at*float64(n), func(c int, want float64) int {
					if float64(c) < want {
						return -1
					}
					return 1
				})
				to = cuts[min(len(cuts)-1, k)]
			}
			if to > at {
				body = append(body, hay[at:to]...)
				at = to
			}
			body = append(body, events[i]...)
		}
		body = append(append(body, hay[at:]...), question...)
		written := g.tok.Decode(body, false)
		if !utf8.ValidString(written) || strings.ContainsRune(written, utf8.RuneError) {
			continue
		}
		if again := g.tok.EncodeLiteral(written); len(head)+len(again)+len(tail) == m.length {
			return slices.Concat(head, again, tail)
		}
	}
	return nil
}

// cuts returns the positions after line breaks, where an event may be inserted.
func (g *Generator) cuts(hay []int32) []int {
	var cuts []int
	for i, id := range hay {
		if g.newline[id] && i+1 < len(hay) {
			cuts = append(cuts, i+1)
		}
	}
	return cuts
}

// hay returns n tokens of haystack.
func (g *Generator) hay(m *maker, n int, kind haystack) []int32 {
	from := g.noise
	if kind == text {
		if from = g.code; m.unit() >= 0.76 {
			from = g.prose
		}
	}
	out := make([]int32, 0, n)
	at := pick(m.rng, from.starts)
	for len(out) < n {
		out = append(out, from.ids[at:min(len(from.ids), at+n-len(out))]...)
		at = 0
		if kind == text {
			at = pick(m.rng, from.starts)
		}
	}
	return out
}
