package workload

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"time"
)

// Spec describes a load.
type Spec struct {
	Arrivals     Arrivals
	Lengths      Lengths
	Requests     int
	PrefixTokens int // shared by the requests of a group, before the own part of each prompt
	PrefixGroups int // number of different prefixes
	Seed         uint64
}

// MaxRequests bounds a load.
const MaxRequests = 1 << 20

// Validate returns an error if a setting of the load is wrong.
func (s *Spec) Validate() error {
	switch {
	case s.Requests < 1 || s.Requests > MaxRequests:
		return fmt.Errorf("%d requests: want 1 to %d", s.Requests, MaxRequests)
	case s.PrefixTokens < 0 || s.PrefixTokens > MaxTokens:
		return fmt.Errorf("prefix of %d tokens: want 0 to %d", s.PrefixTokens, MaxTokens)
	case s.PrefixGroups < 1 || s.PrefixGroups > s.Requests:
		return fmt.Errorf("%d prefixes: want 1 to the number of requests, %d", s.PrefixGroups, s.Requests)
	}
	return nil
}

// Request is one request of a load.
type Request struct {
	Number int
	At     time.Duration // since the start
	Input  int           // tokens of the prompt's own part
	Output int           // tokens of the answer
	Prefix int           // tokens of the shared part
	Group  int           // which shared part
	seed   uint64
}

// Draw returns the requests of a load, in the order of their arrival.
func (s *Spec) Draw() []Request {
	r := rand.New(rand.NewPCG(s.Seed, 0))
	at := s.Arrivals.times(s.Requests, r)
	out := make([]Request, s.Requests)
	for i := range out {
		in, answer := s.Lengths.draw(r)
		out[i] = Request{Number: i, At: at[i], Input: in, Output: answer, Prefix: s.PrefixTokens, Group: r.IntN(s.PrefixGroups), seed: s.Seed}
	}
	return out
}

// Tokens estimates how many tokens a server's tokenizer and template make of a text with a number of words.
type Tokens struct {
	PerWord float64
	Fixed   float64 // of the template
}

// FitTokens computes Tokens from the token counts of two texts.
func FitTokens(words [2]int, tokens [2]int) (Tokens, error) {
	t := Tokens{PerWord: float64(tokens[1]-tokens[0]) / float64(words[1]-words[0])}
	t.Fixed = float64(tokens[0]) - t.PerWord*float64(words[0])
	if !(t.PerWord >= 0.2 && t.PerWord <= 20) {
		return t, fmt.Errorf("the server counts %d tokens in %d words and %d in %d: its usage cannot be right; give the tokens per word",
			tokens[0], words[0], tokens[1], words[1])
	}
	return t, nil
}

// Text returns the prompt of a request. Requests of one group begin with the same words. All others
// differ from the first word on, so that no prefix cache serves them.
func (t Tokens) Text(r Request) string {
	var b strings.Builder
	fixed := t.Fixed
	if r.Prefix > 0 {
		t.words(&b, float64(r.Prefix)-fixed, rand.New(rand.NewPCG(r.seed, 1<<32+uint64(r.Group))))
		fixed = 0
	}
	t.words(&b, float64(r.Input)-fixed, rand.New(rand.NewPCG(r.seed, 2<<32+uint64(r.Number))))
	return b.String()
}

// Words returns a text of n random words.
func Words(n int, seed uint64) string {
	var b strings.Builder
	Tokens{PerWord: 1}.words(&b, float64(n), rand.New(rand.NewPCG(seed, 3<<32)))
	return b.String()
}

func (t Tokens) words(b *strings.Builder, tokens float64, r *rand.Rand) {
	for range int(math.Max(1, math.Round(tokens/t.PerWord))) {
		if b.Len() > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(vocabulary[r.IntN(len(vocabulary))])
	}
}

// vocabulary has common short words, which most tokenizers encode as one token each.
var vocabulary = strings.Fields(`
	about after again air all along also always and animal answer any around ask away back be because been before
	began being below between big both boy build but by call came can change city close cold come could country cut
	day did different do does done door down draw each early earth eat end enough even every example eye face family
	far father feet few find fire first fish five follow food for form found four friend from gave get girl give go
	good got great group grow had half hand hard has have he head hear help her here high him his home horse hot hour
	house how idea if in into is it just keep kind know land large last late learn leave left less let letter life
	light like line list little live long look low made make man many mark may me mean men might mile moon more most
	mother mountain move much music must my name near need never new next night no north not note notice now number of
	off often oil old on once one only open or order other our out over own page paper part people place plan plant
	play point power press problem put question quick rain read real rest right river road rock room round rule run
	said same saw say school sea second see seem sentence set several she ship short should show side simple since six
	size sleep slow small snow so some song soon sound south spell stand star start state stay step still stood stop
	story street strong study such sun sure surface table tail take talk tell ten test than that the their them then
	there these they thing think this those thought three through time to together too top toward town travel tree
	true try turn two under unit until up us use usual very voice vowel walk want war warm was watch water way we
	week well went were west what wheel when where which while white who whole why wind with wonder wood word work
	world would write year yes yet you young your`)
