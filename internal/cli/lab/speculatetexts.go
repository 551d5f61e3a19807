package lab

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"

	"github.com/shoal-llm/shoal/internal/bench"
	"github.com/shoal-llm/shoal/internal/cli/models"
	"github.com/shoal-llm/shoal/internal/cli/ui"
	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/sampler"
	"github.com/shoal-llm/shoal/internal/eval"
	"github.com/shoal-llm/shoal/internal/server/engine"
	"github.com/shoal-llm/shoal/internal/text/tokenizer"
)

// fixtures holds the sources of the texts of shoal lab speculate: a model and the corpus of the
// evaluation. A model that is a shape has the tokenizer of the bundled model.
type fixtures struct {
	dir    string // the model
	random bool   // the weights are random, so the answers are prepared texts
	tok    *tokenizer.Tokenizer
	chat   *tokenizer.ChatTemplate
	gen    *eval.Generator
	corpus *eval.Corpus
}

const (
	speculateTexts = 24  // texts per kind for a model with weights
	replayedTexts  = 16  // texts per kind for a shape; prefill of a large model takes long
	fileTokens     = 600 // tokens of a code file
	shortTokens    = 192 // tokens of a code file for a shape
)

func newFixtures(e *ui.Env, name string) (m *fixtures, err error) {
	m = &fixtures{corpus: eval.OwnCorpus(), random: slices.Contains(checkpoint.Shapes(), name)}
	from := ""
	if m.random {
		m.dir = checkpoint.RandomPrefix + name
		from, err = models.ModelFlag{}.Dir(e)
	} else {
		m.dir, err = models.ModelFlag{Model: name}.Dir(e)
		from = m.dir
	}
	if err != nil {
		return nil, err
	}
	if m.tok, err = tokenizer.Load(from); err != nil {
		return nil, err
	}
	if m.chat, err = tokenizer.LoadChatTemplate(from); err != nil {
		return nil, err
	}
	m.gen, err = eval.NewGenerator(m.tok, m.chat, nil, 1)
	return m, err
}

// texts returns the number of texts per kind, and the length of code files in tokens.
func (m *fixtures) texts() (n, file int) {
	if m.random {
		return replayedTexts, shortTokens
	}
	return speculateTexts, fileTokens
}

// text generates the prompts of one kind, and the answers to replay if there are any. on
// generates the first turns of a conversation.
func (m *fixtures) text(e *ui.Env, on engine.Engine, kind string) (t bench.SpeculateText, err error) {
	t = bench.SpeculateText{Kind: kind, Sampling: greedily}
	n, file := m.texts()
	for i := range n {
		var prompt, replay []int32
		switch kind {
		case "chat":
			question := tokenizer.Message{Role: "user", Content: chatQuestions[i%len(chatQuestions)]}
			t.Sampling = func(i int) sampler.Params {
				p := sampler.Default()
				p.Temperature, p.Seed = 0.7, uint64(i)
				return p
			}
			if prompt, err = m.turn(question); m.random {
				replay = m.tok.EncodeLiteral(strings.Join(m.prose(i, 40), " "))
			}
		case "again":
			t.ToEnd = true
			prompt, replay, err = m.repeatedAnswer(e, on, i)
		case "code", "edit":
			code := m.cut(m.corpus.Code, 1500*i, file)
			again := m.tok.EncodeLiteral(code)
			if prompt = slices.Concat(m.tok.Encode("", true), again, again[:60]); m.random {
				replay = again[60:]
			}
			if kind == "edit" {
				instruction, edited := edit(code)
				prompt = slices.Concat(m.tok.Encode("", true), again, m.tok.EncodeLiteral(instruction))
				replay = m.tok.EncodeLiteral(edited)
			}
		case "retrieval":
			t.ToEnd = true
			if m.random {
				sentences := m.prose(i, 12)
				prompt, err = m.turn(tokenizer.Message{Role: "user", Content: strings.Join(sentences, ". ") +
					".\n\nWhat is said in the middle, and what just before the end? Quote it."})
				replay = m.tok.EncodeLiteral(fmt.Sprintf("In the middle the text says: \"%s.\" Just before its end it says: \"%s.\"",
					sentences[5]+". "+sentences[6], sentences[10]))
				break
			}
			var s *eval.Sample
			if s, err = m.gen.Sample([]string{"niah_multivalue", "vt", "niah_multikey"}[i%3], 1500, i); err == nil {
				prompt = s.Prompt
			}
		case "random":
			rng := rand.New(rand.NewPCG(20, uint64(i)))
			for range 64 {
				prompt = append(prompt, int32(16+rng.IntN(m.tok.VocabSize()-16)))
			}
			for range 4096 {
				replay = append(replay, int32(16+rng.IntN(m.tok.VocabSize()-16)))
			}
		default:
			return t, fmt.Errorf("--text %q: known are chat, again, code, edit, retrieval, random", kind)
		}
		if err != nil {
			return t, err
		}
		if t.Prompts = append(t.Prompts, prompt); replay != nil {
			t.Replay = append(t.Replay, replay)
		}
	}
	return t, nil
}

func greedily(int) sampler.Params {
	p := sampler.Default()
	p.Temperature = 0
	return p
}

func (m *fixtures) turn(messages ...tokenizer.Message) ([]int32, error) {
	r, err := m.chat.Render(messages, tokenizer.RenderOptions{AddGenerationPrompt: true})
	if err != nil {
		return nil, err
	}
	return m.tok.Encode(r.String(), false), nil
}

// repeatedAnswer returns a chat in which the second answer repeats the first. With real weights both
// questions are the same, and the model generates the answers. With random weights the first
// answer is a list of sentences, and the second repeats all but one of them as bullets.
func (m *fixtures) repeatedAnswer(e *ui.Env, on engine.Engine, i int) (prompt, replay []int32, err error) {
	question := tokenizer.Message{Role: "user", Content: chatQuestions[i%len(chatQuestions)]}
	if m.random {
		sentences := m.prose(i, 8)
		first, second := "", ""
		for k, sentence := range sentences {
			first += fmt.Sprintf("%d. %s\n", k+1, sentence)
			if k != 2 {
				second += "- " + sentence + "\n"
			}
		}
		prompt, err = m.turn(question, tokenizer.Message{Role: "assistant", Content: first},
			tokenizer.Message{Role: "user", Content: "As bullets, please, and without the third."})
		return prompt, m.tok.EncodeLiteral(second), err
	}
	if prompt, err = m.turn(question); err != nil {
		return nil, nil, err
	}
	events, err := on.Submit(e.Ctx, &engine.Request{ID: fmt.Sprint("first/", i), Prompt: prompt, MaxTokens: 192, Sampling: greedily(i),
		PromptLogprobs: -1, Speculate: "off"})
	if err != nil {
		return nil, nil, err
	}
	var answer []int32
	for ev := range events {
		if err = errors.Join(err, ev.Err); ev.Token != engine.NoToken && !m.tok.IsSpecial(ev.Token) {
			answer = append(answer, ev.Token)
		}
	}
	if err != nil {
		return nil, nil, err
	}
	prompt, err = m.turn(question, tokenizer.Message{Role: "assistant", Content: m.tok.Decode(answer, false)}, question)
	return prompt, nil, err
}

// prose returns sentences of the corpus; each i gets different ones.
func (m *fixtures) prose(i, n int) []string {
	all := strings.Split(strings.Join(strings.Fields(m.corpus.English), " "), ". ")
	at := i * 47 % (len(all) - n)
	return all[at : at+n]
}

// cut returns about the given number of tokens of a text, in whole lines, at least one.
func (m *fixtures) cut(text string, at, tokens int) string {
	at %= len(text) / 2
	at += strings.IndexByte(text[at:], '\n') + 1
	cut := m.tok.Decode(m.tok.EncodeLiteral(text[at : at+8*tokens])[:tokens], false)
	return cut[:strings.LastIndexByte(cut, '\n')+1]
}

var names = regexp.MustCompile(`\b[a-z][A-Za-z]{3,}\b`)

// edit returns an instruction for a code file, and the edited file: its most frequent name is
// replaced, and one line is added.
func edit(code string) (instruction, edited string) {
	used, name := map[string]int{}, "func"
	for _, n := range names.FindAllString(code, -1) {
		if used[n]++; used[n] > used[name] && n != "func" && n != "return" {
			name = n
		}
	}
	to := "my" + strings.ToUpper(name[:1]) + name[1:]
	lines := strings.SplitAfter(regexp.MustCompile(`\b`+name+`\b`).ReplaceAllString(code, to), "\n")
	lines = slices.Insert(lines, len(lines)/3, "\t// TODO: say why "+to+" is here.\n")
	return "\n// Rename " + name + " to " + to + ", and note where it needs a word:\n\n", strings.Join(lines, "")
}

// chatQuestions are few, like those of the training of the bundled model, so answers repeat.
var chatQuestions = []string{
	"Write a Go function that reverses a string.", "What is a goroutine?", "What is the difference between a slice and an array?",
	"Write a test for a function that adds two numbers.", "How do I read a file line by line?", "What does defer do?",
	"Write a program that prints the numbers from 1 to 100.", "Explain what an interface is.", "How do I sort a slice of strings?",
	"What is a channel?", "Write a loop that sums the values of a map.", "How do I handle errors in Go?",
	"Write a struct for a point with a method that moves it.", "What is a mutex for?",
	"How do I make an HTTP request?", "Tell me what a pointer is.",
}
