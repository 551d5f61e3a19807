package jobs

import (
	b64 "encoding/base64"
	"math"
	"reflect"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/sampler"
	"github.com/shoal-llm/shoal/internal/server/engine"
)

func base64(b []byte) string { return b64.StdEncoding.EncodeToString(b) }

func sampleEvents() []Logged {
	inf := float32(math.Inf(-1))
	return []Logged{
		{0, engine.Event{Token: 5}},
		{3, engine.Event{Token: 0, Logprob: -1.25, Top: []sampler.TokenLogprob{{Token: 7, Logprob: -0.1}, {Token: 0, Logprob: inf}}}},
		{1, engine.Event{Token: 9,
			PromptLogprobs: []engine.PromptLogprob{{}, {Logprob: -3, Top: []sampler.TokenLogprob{{Token: 1, Logprob: -2}}}}}},
		{0, engine.Event{Token: 2, Finish: engine.FinishStop}},
		{1, engine.Event{Token: engine.NoToken, Finish: engine.FinishLength}},
		{2, engine.Event{Token: engine.NoToken, Pooled: []float32{1.5, -0.25, inf}, Finish: engine.FinishStop}},
	}
}

func TestEventsReturnExactly(t *testing.T) {
	want := sampleEvents()
	first, got, err := DecodeTokens(EncodeTokens(41, want))
	if err != nil || first != 41 || !reflect.DeepEqual(got, want) {
		t.Fatalf("%v %d\n%+v\n%+v", err, first, got, want)
	}
}

func FuzzTokens(f *testing.F) {
	f.Add(EncodeTokens(7, sampleEvents()))
	f.Add([]byte{0, 1, 4, 0, 0xff, 0xff, 0xff, 0xff, 0x0f})
	f.Fuzz(func(t *testing.T, b []byte) {
		first, events, err := DecodeTokens(b)
		if err != nil {
			return
		}
		again, more, err := DecodeTokens(EncodeTokens(first, events))
		if err != nil || again != first || len(more) != len(events) {
			t.Fatalf("%d events decode, encode and do not decode: %v", len(events), err)
		}
	})
}
