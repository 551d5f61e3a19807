package eval

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/shoal-llm/shoal/internal/text/tokenizer"
)

// MinLength and MaxLength bound the prompts that Sample makes, in tokens.
const (
	MinLength = 512
	MaxLength = 1 << 20
)

var (
	// ErrTask names a task that there is not, or that this model cannot be asked.
	ErrTask = errors.New("eval: unknown task")
	// ErrLength means that no prompt of exactly the wanted length came out.
	ErrLength = errors.New("eval: prompt length")
)

// Sample is one prompt and what must follow it.
type Sample struct {
	Task          string
	Length, Index int
	Prompt        []int32 // exactly Length tokens, beginning-of-sequence token included
	// Answer are the tokens of the right continuation. Those of [From,To) count:
	// not the lead that a chat model writes first, and not the token that ends the
	// answer (a full stop or quotation mark with its line end).
	Answer   []int32
	From, To int
	Text     string   // the answer as text
	Wanted   []string // its values
	AnyOrder bool
	Depth    float64 // of the needle in the haystack, 0 to 1; -1: there is no single one
	// Given are the first tokens of the answer that the model is given, whatever it
	// would have said (RunTogether only), and ByTokens says that tokens are compared,
	// not the text: as the reference implementation does.
	Given    int
	ByTokens bool
}

// MaxTokens is how many tokens a server is asked for.
func (s *Sample) MaxTokens() int { return len(s.Answer) + 2 }

// Generator makes samples. It is safe for concurrent use.
type Generator struct {
	tok                *tokenizer.Tokenizer
	bos                []int32
	chatHead, chatTail []int32 // around the message; nil: no chat template
	seed               uint64
	noise, code, prose *stream
	newline            []bool // token ends with a line end
	corpus             string
}

// stream is tokenized text and the places where a cut may begin.
type stream struct {
	ids    []int32
	starts []int
}

// NewGenerator prepares the haystacks. chat may be nil, corpus nil: OwnCorpus.
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

// Corpus identifies the text of the haystacks.
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

// chatAround finds what the template puts before and after one user message.
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

// Sample makes sample number index of a task, with a prompt of exactly length
// tokens. It depends on nothing but the seed, the three arguments, the tokenizer
// and the corpus.
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
	m := &maker{dice: newDice(g.seed, name, length, index), length: length, shrink: 1}
	for range 200 {
		p := t.make(m)
		if prompt := g.prompt(m, t, &p); prompt != nil {
			s := &Sample{Task: name, Length: length, Index: index, Prompt: prompt, Text: p.answer, Wanted: p.wanted, AnyOrder: p.anyOrder, Depth: p.depth}
			g.answer(s, t, &p)
			return s, nil
		}
	}
	return nil, fmt.Errorf("%w: no %s prompt of exactly %d tokens came out of 200 tries", ErrLength, name, length)
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

// prompt assembles p with haystacks of about the right length until the prompt,
// written out and tokenized anew, has exactly m.length tokens: words that meet at
// a cut may become one token. nil: it did not come out; lists that are too long
// are shortened for the next try.
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

// cuts are the places after a line end, where an event may stand.
func (g *Generator) cuts(hay []int32) []int {
	var cuts []int
	for i, id := range hay {
		if g.newline[id] && i+1 < len(hay) {
			cuts = append(cuts, i+1)
		}
	}
	return cuts
}

// hay cuts n tokens of haystack.
func (g *Generator) hay(m *maker, n int, kind haystack) []int32 {
	from := g.noise
	if kind == text {
		if from = g.code; m.unit() >= 0.76 {
			from = g.prose
		}
	}
	out := make([]int32, 0, n)
	at := pick(m.dice, from.starts)
	for len(out) < n {
		out = append(out, from.ids[at:min(len(from.ids), at+n-len(out))]...)
		at = 0
		if kind == text {
			at = pick(m.dice, from.starts)
		}
	}
	return out
}
