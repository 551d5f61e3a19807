package plan

import (
	"reflect"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/sampler"
	"github.com/shoal-llm/shoal/internal/text/grammar"
)

// TestSamplingOnTheWire: Encode and Decode carry every parameter.
func TestSamplingOnTheWire(t *testing.T) {
	p := sampler.Params{Temperature: 1, TopP: 2, MinP: 3, RepetitionPenalty: 4, PresencePenalty: 5,
		FrequencyPenalty: 6, TopK: 7, Seed: 8, LogitBias: []sampler.Bias{{Token: 9, Value: 10}},
		Allowed: []uint64{11, 1 << 63}, BadWords: [][]int32{{12}, {13, 14}},
		Logprobs: 15, MinTokens: 16, Stop: []int32{17, 18}, Trace: []int32{19},
		Grammar: &grammar.Spec{Kind: "a", Text: "b", Whitespace: "c", Compact: true, AnyOrder: true, Open: true, Thought: "d"}}
	for _, v := range []reflect.Value{reflect.ValueOf(p), reflect.ValueOf(*p.Grammar)} {
		for i := range v.NumField() {
			if v.Field(i).IsZero() {
				t.Errorf("%s.%s is not tested here", v.Type(), v.Type().Field(i).Name)
			}
		}
	}
	if got := DecodeSampling(EncodeSampling(&p)); !reflect.DeepEqual(got, p) {
		t.Errorf("%+v came as %+v", p, got)
	}
}
