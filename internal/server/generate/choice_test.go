package generate

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/shoal-llm/shoal/internal/server/engine"
	"github.com/shoal-llm/shoal/internal/server/servertest"
)

// For random tokens, stop strings and min_tokens: the deltas add up to the decoded text cut at the stop
// string, each token of the shown text is reported once and in order, and there is exactly one finish.
func TestChoiceAddsUp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ids := rapid.SliceOfN(rapid.SampledFrom([]int32{'a', 'b', 0xe6, 0x97, 0xa5, servertest.TokHello, servertest.TokOne, servertest.TokUser}),
			1, 20).Draw(t, "ids")
		stops := rapid.SliceOfN(rapid.SampledFrom([]string{"ab", "aab", "日", "lo o", "b"}), 0, 3).Draw(t, "stops")
		minTokens := rapid.IntRange(0, 4).Draw(t, "min")
		eos := rapid.Bool().Draw(t, "eos")
		c := &Choice{text: servertest.Tokenizer{}.NewStream(true), stop: stopper{stops: stops},
			maxTokens: 99, minTokens: minTokens, logprobs: true}
		var text string
		var reported []int32
		finishes := 0
		for i, id := range ids {
			ev := engine.Event{Token: id}
			if i == len(ids)-1 {
				ev.Finish = engine.FinishLength
				if eos {
					ev.Token, ev.Finish = servertest.TokEOS, engine.FinishStop
				}
			}
			d, show, err := c.accept(ev)
			if err != nil {
				t.Fatal(err)
			}
			if !show && (d.Text != "" || d.Tokens != nil) {
				t.Fatal("a delta that is not shown has content")
			}
			text += d.Text
			for _, r := range d.Tokens {
				reported = append(reported, r.Id)
			}
			if d.Finish != "" {
				finishes++
			}
		}
		body := ids
		if eos {
			body = ids[:len(ids)-1]
		}
		exempt := min(minTokens, len(body))
		whole := servertest.Tokenizer{}.Decode(body, true)
		head := ""
		{ // text of the tokens in which no stop string is searched
			s := servertest.Tokenizer{}.NewStream(true)
			for _, id := range body[:exempt] {
				head += s.Push(id)
			}
		}
		if exempt == len(body) && minTokens >= len(ids) {
			head = whole // the tail as well
		}
		rest, hit := naiveStop(strings.TrimPrefix(whole, head), stops)
		if want := head + rest; text != want {
			t.Fatalf("text %q, want %q", text, want)
		}
		if finishes != 1 {
			t.Fatalf("%d finishes", finishes)
		}
		if hit == "" && len(reported) != len(ids) {
			t.Fatalf("%d of %d tokens reported", len(reported), len(ids))
		}
		for i, id := range reported {
			if want := ids[i]; id != want && !(eos && i == len(ids)-1 && id == servertest.TokEOS) {
				t.Fatalf("token %d is %d, want %d", i, id, want)
			}
		}
	})
}

func TestChoiceIgnoresEventsAfterAStop(t *testing.T) {
	c := &Choice{text: servertest.Tokenizer{}.NewStream(true), stop: stopper{stops: []string{"b"}}, maxTokens: 9}
	_, _, _ = c.accept(engine.Event{Token: 'a'})
	if d, _, _ := c.accept(engine.Event{Token: 'b'}); d.Finish != engine.FinishStop {
		t.Fatal("no stop")
	}
	if d, show, err := c.accept(engine.Event{Token: engine.NoToken, Finish: engine.FinishCancelled}); show || err != nil || d.Text != "" {
		t.Errorf("%v %v %v", d, show, err)
	}
	if c.tokens != 2 {
		t.Errorf("%d tokens", c.tokens)
	}
}
