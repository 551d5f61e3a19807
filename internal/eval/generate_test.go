package eval

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/shoal-llm/shoal/internal/text/tokenizer"
)

func TestMain(m *testing.M) {
	// An actor system leaks one goroutine, of its dead letters' throttle.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/asynkron/protoactor-go/actor.NewDeadLetter.NewThrottle.func4.1"))
}

const modelDir = "../../models/fry"

var loadTokenizer = sync.OnceValues(func() (*tokenizer.Tokenizer, error) { return tokenizer.Load(modelDir) })

func testTokenizer(t testing.TB) *tokenizer.Tokenizer {
	t.Helper()
	tok, err := loadTokenizer()
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

func testGenerator(t testing.TB, seed uint64) *Generator {
	t.Helper()
	chat, err := tokenizer.LoadChatTemplate(modelDir)
	if err != nil {
		t.Fatal(err)
	}
	g, err := NewGenerator(testTokenizer(t), chat, nil, seed)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func sample(t testing.TB, g *Generator, task string, length, index int) *Sample {
	t.Helper()
	s, err := g.Sample(task, length, index)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestSamplesAreValid: exact length, canonical tokens, one question, and the answer in the
// text.
func TestSamplesAreValid(t *testing.T) {
	g, tok := testGenerator(t, 3), testTokenizer(t)
	for _, name := range TaskNames() {
		for _, c := range []struct{ length, samples int }{{512, 8}, {1000, 3}, {4096, 2}} {
			for i := range c.samples {
				s := sample(t, g, name, c.length, i)
				if len(s.Prompt) != c.length {
					t.Fatalf("%s: %d tokens, want %d", name, len(s.Prompt), c.length)
				}
				head, tail := g.bos, []int32{}
				if NeedsChat(name) {
					head, tail = g.chatHead, g.chatTail
				}
				body := s.Prompt[len(head) : len(s.Prompt)-len(tail)]
				written := tok.Decode(body, false)
				if !slices.Equal(tok.EncodeLiteral(written), body) || slices.ContainsFunc(body, tok.IsSpecial) {
					t.Errorf("%s %d/%d: the tokens are not those of their text", name, c.length, i)
				}
				for _, w := range s.Wanted {
					if !strings.Contains(written, w) {
						t.Errorf("%s %d/%d: the text lacks %q", name, c.length, i, w)
					}
					if !strings.Contains(s.Text, w) {
						t.Errorf("%s %d/%d: the answer %q lacks %q", name, c.length, i, s.Text, w)
					}
				}
				if got := s.scoreTokens(s.Answer, s.Text); !got.Exact || got.Tokens != 1 || got.Recall != 1 {
					t.Errorf("%s %d/%d: the right answer scores %+v", name, c.length, i, got)
				}
				if s.From >= s.To || s.To > len(s.Answer) || s.MaxTokens() <= s.To {
					t.Errorf("%s: answer of %d tokens, counted [%d,%d), %d asked for", name, len(s.Answer), s.From, s.To, s.MaxTokens())
				}
				if single := name == "passkey" || strings.Contains(name, "single") || name == "chat_niah"; single != (s.Depth >= 0) || s.Depth >= 1 {
					t.Errorf("%s: depth %v", name, s.Depth)
				}
			}
		}
	}
}

// TestSecondQuestion: the first answer and a second question follow the prompt, which contains both
// answers but only the first question. Servers cannot run this task.
func TestSecondQuestion(t *testing.T) {
	g, tok := testGenerator(t, 4), testTokenizer(t)
	for _, name := range []string{"niah_second", "kv_second"} {
		s := sample(t, g, name, 1000, 1)
		prompt, given := tok.Decode(s.Prompt, true), tok.Decode(s.Answer[:s.Given], true)
		first, question, ok := strings.Cut(given, "\nQuestion: ")
		if !ok || s.Given != s.From || !s.ByTokens || !strings.HasSuffix(question, "is") && !strings.HasSuffix(question, "is:") {
			t.Errorf("%s: given %q, counted from %d of %d", name, given, s.From, s.Given)
		}
		asked, _, _ := strings.Cut(question, "\n")
		first = strings.Trim(first, ` ".`)
		if first == s.Wanted[0] || !strings.Contains(prompt, first) || !strings.Contains(prompt, s.Wanted[0]) || strings.Contains(prompt, asked) {
			t.Errorf("%s: %q is answered by %q, then %q by %q", name, prompt[len(prompt)-200:], first, asked, s.Wanted[0])
		}
		if _, err := evaluate(t.Context(), nil, tok, g, job{task: name, length: 1000, index: 1}); !errors.Is(err, ErrTask) ||
			!strings.Contains(err.Error(), "--together") {
			t.Errorf("%s of a server: %v", name, err)
		}
	}
}

// TestNeedleStandsAtItsDepth compares the recorded depth with the text.
func TestNeedleStandsAtItsDepth(t *testing.T) {
	g, tok := testGenerator(t, 5), testTokenizer(t)
	for i := range 10 {
		s := sample(t, g, "niah_single_noise", 4096, i)
		written := tok.Decode(s.Prompt, true)
		at := float64(strings.Index(written, "One of the special")) / float64(len(written))
		if at < s.Depth-0.06 || at > s.Depth+0.06 {
			t.Errorf("sample %d: depth %.3f, found at %.3f", i, s.Depth, at)
		}
	}
}

// TestSamplesAreTheSameEverywhere: a seed gives reproducible prompts.
func TestSamplesAreTheSameEverywhere(t *testing.T) {
	a, b := testGenerator(t, 1), testGenerator(t, 1)
	sum, named := sha256.New(), sha256.New()
	for _, name := range TaskNames() {
		into := sum
		if !slices.Contains(defaultTasks(), name) {
			into = named
		}
		late := sample(t, a, name, 600, 2)
		for i := range 3 {
			s, again := sample(t, a, name, 600, i), sample(t, b, name, 600, i)
			if !slices.Equal(s.Prompt, again.Prompt) || !slices.Equal(s.Answer, again.Answer) {
				t.Errorf("%s %d differs between generators", name, i)
			}
			if i == 2 && !slices.Equal(s.Prompt, late.Prompt) {
				t.Errorf("%s depends on the samples made before it", name)
			}
			if err := binary.Write(into, binary.LittleEndian, s.Prompt); err != nil {
				t.Fatal(err)
			}
		}
		if other := sample(t, testGenerator(t, 2), name, 600, 0); slices.Equal(other.Prompt, sample(t, a, name, 600, 0).Prompt) {
			t.Errorf("%s ignores the seed", name)
		}
	}
	const want, wantNamed = "203a14f0489fcc75", "ea8c9c3973ba3cc4"
	if got := fmt.Sprintf("%x", named.Sum(nil)[:8]); got != wantNamed {
		t.Errorf("the prompts of the tasks that are named have changed (%s, were %s)", got, wantNamed)
	}
	if got := fmt.Sprintf("%x", sum.Sum(nil)[:8]); got != want {
		t.Errorf("the prompts of seed 1 have changed (%s, were %s): numbers in docs/accuracy.md are no longer comparable", got, want)
	}
	if got, want := OwnCorpus().Name, "own-da48aa15"; got != want {
		t.Errorf("the haystack has changed: %s, was %s", got, want)
	}
}

func TestSampleErrors(t *testing.T) {
	g := testGenerator(t, 1)
	if _, err := g.Sample("nothing", 512, 0); !errors.Is(err, ErrTask) || !strings.Contains(err.Error(), "passkey") {
		t.Error(err)
	}
	for _, l := range []int{-1, 0, MinLength - 1, MaxLength + 1} {
		if _, err := g.Sample("vt", l, 0); !errors.Is(err, ErrLength) {
			t.Error(l, err)
		}
	}
	plain, err := NewGenerator(testTokenizer(t), nil, nil, 1)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := plain.Sample("chat_niah", 512, 0); !errors.Is(err, ErrTask) {
		t.Error(err)
	}
}

func TestReadCorpus(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := ReadCorpus(filepath.Join(dir, "none")); !errors.Is(err, ErrCorpus) {
		t.Error(err)
	}
	write("a.go", strings.Repeat("func f() {}\n", 600))
	write("b/c.md", "Words.\n")
	write("testdata/x.go", "never")
	write("d.bin", "never")
	write("e.txt", "bad \xff bytes")
	c, err := ReadCorpus(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Code) != 600*12+1 || c.English != "Words.\n\n" {
		t.Errorf("code %d bytes, prose %q", len(c.Code), c.English)
	}
	one, err := ReadCorpus(filepath.Join(dir, "a.go"))
	if err != nil || one.English != one.Code || one.Name == c.Name {
		t.Error(err, one.Name)
	}
	if _, err := ReadCorpus(filepath.Join(dir, "b")); !errors.Is(err, ErrCorpus) {
		t.Error("seven bytes are too little", err)
	}
}
