package eval

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/shoal-llm/shoal/internal/text/tokenizer"
)

// Source provides the samples of an evaluation: a Generator, or Prompts from a file.
type Source interface {
	// Sample returns sample number index of a task with a prompt of length tokens.
	Sample(task string, length, index int) (*Sample, error)
	// Corpus and Seed identify the prompts in results.
	Corpus() string
	Seed() uint64
}

// Prompts are samples from a file written by train/evalgen.py, with the token ids that the
// reference implementation received.
type Prompts struct {
	name string
	tok  *tokenizer.Tokenizer
	sets map[string]promptSet
}

// promptSet is one task at one length. Answers may be padded with -1. The last token of each ends
// the answer and is not scored. The first ScoreFrom tokens are given and not scored either.
type promptSet struct {
	Prompt    [][]int32  `json:"prompt"`
	Answer    [][]int32  `json:"ans"`
	ScoreFrom []int      `json:"sf"`
	Depth     []*float64 `json:"depth"`
}

// ErrPrompts: a file of prompts cannot be used.
var ErrPrompts = errors.New("eval: unusable prompts")

// maxPrompts is the maximum size of a prompt file. 100 samples of 12 tasks at 32768 tokens need a
// quarter of it.
const maxPrompts = 1 << 30

// ReadPrompts reads a JSON object, optionally gzipped, with an entry per task and length:
//
//	{"passkey@4096": {"prompt": [[ids]...], "ans": [[ids]...], "sf": [n...], "depth": [x or null...]}, ...}
//
// sf and depth are optional. Errors wrap ErrPrompts.
func ReadPrompts(path string, tok *tokenizer.Tokenizer) (*Prompts, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrPrompts, err)
	}
	defer f.Close()
	p, err := parsePrompts(f, tok)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return p, nil
}

func parsePrompts(in io.Reader, tok *tokenizer.Tokenizer) (*Prompts, error) {
	buffered := bufio.NewReader(in)
	in = buffered
	if magic, _ := buffered.Peek(2); string(magic) == "\x1f\x8b" {
		z, err := gzip.NewReader(buffered)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrPrompts, err)
		}
		in = z
	}
	hash := fnv.New32a()
	p := &Prompts{tok: tok}
	d := json.NewDecoder(io.TeeReader(io.LimitReader(in, maxPrompts), hash))
	if err := d.Decode(&p.sets); err != nil {
		return nil, fmt.Errorf("%w: want an object of tasks: %w", ErrPrompts, err)
	}
	if len(p.sets) == 0 {
		return nil, fmt.Errorf("%w: no task", ErrPrompts)
	}
	for key, s := range p.sets {
		if err := s.check(key, tok.VocabSize()); err != nil {
			return nil, err
		}
	}
	p.name = fmt.Sprintf("prompts-%08x", hash.Sum32())
	return p, nil
}

func (s promptSet) check(key string, vocab int) error {
	task, length, err := splitKey(key)
	switch {
	case err != nil:
		return err
	case !slices.Contains(TaskNames(), task):
		return fmt.Errorf("%w: %q: known tasks are %s", ErrPrompts, key, strings.Join(TaskNames(), ", "))
	case len(s.Prompt) == 0 || len(s.Answer) != len(s.Prompt) || s.ScoreFrom != nil && len(s.ScoreFrom) != len(s.Prompt) ||
		s.Depth != nil && len(s.Depth) != len(s.Prompt):
		return fmt.Errorf("%w: %s: %d prompts, %d answers, %d sf, %d depths", ErrPrompts, key, len(s.Prompt),
			len(s.Answer), len(s.ScoreFrom), len(s.Depth))
	}
	for i := range s.Prompt {
		if len(s.Prompt[i]) != length {
			return fmt.Errorf("%w: %s: prompt %d has %d tokens", ErrPrompts, key, i, len(s.Prompt[i]))
		}
		answer := trimAnswer(s.Answer[i])
		if n := len(answer); n < 2 || s.from(i) < 0 || s.from(i) >= n-1 {
			return fmt.Errorf("%w: %s: answer %d has %d tokens, scored from %d to before its last", ErrPrompts, key, i, n, s.from(i))
		}
		for _, ids := range [][]int32{s.Prompt[i], answer} {
			for _, id := range ids {
				if id < 0 || int(id) >= vocab {
					return fmt.Errorf("%w: %s: sample %d has token %d, the vocabulary %d", ErrPrompts, key, i, id, vocab)
				}
			}
		}
	}
	return nil
}

func splitKey(key string) (task string, length int, err error) {
	task, text, ok := strings.Cut(key, "@")
	if length, err = strconv.Atoi(text); !ok || err != nil || length < 1 || length > MaxLength {
		return "", 0, fmt.Errorf("%w: %.60q: want TASK@TOKENS", ErrPrompts, key)
	}
	return task, length, nil
}

// trimAnswer removes the padding.
func trimAnswer(ids []int32) []int32 {
	for len(ids) > 0 && ids[len(ids)-1] == -1 {
		ids = ids[:len(ids)-1]
	}
	return ids
}

func (s promptSet) from(i int) int {
	if s.ScoreFrom == nil {
		return 0
	}
	return s.ScoreFrom[i]
}

// WritePrompts writes n samples of each task and length in the format of ReadPrompts, gzipped, for
// use with another implementation. It omits tasks whose answers are correct in any order, because
// the format has one order.
func WritePrompts(out io.Writer, g Source, tasks []string, lengths []int, n int) error {
	sets := map[string]*promptSet{}
	for _, task := range tasks {
		for _, length := range lengths {
			set := &promptSet{}
			for i := range n {
				s, err := g.Sample(task, length, i)
				if err != nil {
					return err
				}
				if s.AnyOrder || s.AnyOf {
					set = nil
					break
				}
				var depth *float64
				if s.Depth >= 0 {
					depth = &s.Depth
				}
				set.Prompt, set.Answer = append(set.Prompt, s.Prompt), append(set.Answer, s.Answer)
				set.ScoreFrom, set.Depth = append(set.ScoreFrom, s.From), append(set.Depth, depth)
			}
			if set != nil {
				sets[fmt.Sprintf("%s@%d", task, length)] = set
			}
		}
	}
	z := gzip.NewWriter(out)
	if err := json.NewEncoder(z).Encode(sets); err != nil {
		return err
	}
	return z.Close()
}

// Tasks returns the tasks of the file, in table order.
func (p *Prompts) Tasks() []string {
	return slices.DeleteFunc(TaskNames(), func(t string) bool {
		for key := range p.sets {
			if task, _, _ := splitKey(key); task == t {
				return false
			}
		}
		return true
	})
}

// Lengths returns the lengths of the file in ascending order.
func (p *Prompts) Lengths() []int {
	var all []int
	for key := range p.sets {
		_, n, _ := splitKey(key)
		all = append(all, n)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// Samples returns the number of samples that every task and length of the file has.
func (p *Prompts) Samples() int {
	least := 0
	for _, s := range p.sets {
		if least == 0 || len(s.Prompt) < least {
			least = len(s.Prompt)
		}
	}
	return least
}

// Corpus implements Source: a hash of the file's content.
func (p *Prompts) Corpus() string { return p.name }

func (p *Prompts) Seed() uint64 { return 0 }

func (p *Prompts) Sample(task string, length, index int) (*Sample, error) {
	set, ok := p.sets[fmt.Sprintf("%s@%d", task, length)]
	if !ok || index < 0 || index >= len(set.Prompt) {
		return nil, fmt.Errorf("%w: no sample %d of %s at %d tokens in the file", ErrTask, index, task, length)
	}
	s := &Sample{Task: task, Length: length, Index: index, Prompt: set.Prompt[index],
		Answer: trimAnswer(set.Answer[index]), ByTokens: true, Depth: -1}
	s.From, s.To = set.from(index), len(s.Answer)-1
	s.Given, s.Text = s.From, p.tok.Decode(s.Answer[:s.To], true)
	s.Wanted = []string{strings.TrimSpace(p.tok.Decode(s.Answer[s.From:s.To], true))}
	if set.Depth != nil && set.Depth[index] != nil {
		s.Depth = *set.Depth[index]
	}
	return s, nil
}
