package plan

import (
	"reflect"
	"strings"
	"testing"
	"time"

	pb "google.golang.org/protobuf/proto"

	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/kvpolicy"
	"github.com/shoal-llm/shoal/internal/engine/lora"
	"github.com/shoal-llm/shoal/internal/engine/pooling"
	"github.com/shoal-llm/shoal/internal/engine/sampler"
	"github.com/shoal-llm/shoal/internal/proto"
)

// TestRoundTrip sets every field of a plan, and fails for one that the wire loses.
func TestRoundTrip(t *testing.T) {
	var p Plan
	fill(t, reflect.ValueOf(&p).Elem(), new(int))
	for i := range p.Chunks {
		p.Chunks[i].Prefill, p.Chunks[i].Accepted, p.Chunks[i].Draft = true, 7, 8
	}
	for i := range p.Decode {
		r := &p.Decode[i]
		*r = Run{Seq: r.Seq, Owner: r.Owner, Start: r.Start, Tokens: r.Tokens, Sample: true, Accepted: r.Accepted,
			Draft: r.Draft, PromptLogprobs: None, Next: None}
	}
	for _, c := range [...]struct{ from, want *Plan }{{&p, &p}, {&Plan{}, &Plan{Decode: []Run{}, Chunks: []Run{}}}} {
		got, _, err := Decode(carry(t, Encode(c.from, time.Second)), kvpolicy.Parse)
		if err != nil {
			t.Fatal(err)
		}
		local(c.want)
		if !reflect.DeepEqual(&got, c.want) {
			t.Errorf("sent %+v\nread %+v", c.want, got)
		}
	}
}

// TestDecodeRefuses: bytes that no plan encodes to are an error that names the sequence.
func TestDecodeRefuses(t *testing.T) {
	for want, m := range map[string]*proto.StepRequest{
		"sequence 4: kvcache: bad cache policy":         {Open: []*proto.Open{{Seq: 4, Policy: "nosuch"}}},
		"sequence 3: pooling method 4 is not kn":        {Open: []*proto.Open{{Seq: 3, Policy: "full", Pool: 4}}},
		"sequence 5 has prompt logprobs -1":             {Chunks: []*proto.Chunk{{Seq: 5, WantPromptLogprobs: true, PromptLogprobs: -1}}},
		"sequence 6 has 64 bytes of keys for 2":         {Chunks: []*proto.Chunk{{Seq: 6, Save: []uint64{1, 2}, Keys: make([]byte, 64)}}},
		"sequence 8: lora: the ID of an adapter has 31": {Open: []*proto.Open{{Seq: 8, Policy: "full", Adapter: make([]byte, 31)}}},
		"sequence 9: the key of its index has 31 bytes": {Open: []*proto.Open{{Seq: 9, Policy: "full", IndexKey: make([]byte, 31)}}},
		"sequence 7 has 33 bytes of keys for 1 ":        {Keep: []*proto.Keep{{Seq: 7, Save: []uint64{1}, Keys: make([]byte, 33)}}},
	} {
		if _, _, err := Decode(m, kvpolicy.Parse); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

func carry(t *testing.T, m *proto.StepRequest) *proto.StepRequest {
	t.Helper()
	b, err := pb.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	out := new(proto.StepRequest)
	if err := pb.Unmarshal(b, out); err != nil {
		t.Fatal(err)
	}
	return out
}

// local clears the fields that do not cross the wire.
func local(p *Plan) {
	for i := range p.Open {
		p.Open[i].ID = ""
	}
	for _, list := range [...][]Run{p.Decode, p.Chunks} {
		for i := range list {
			list[i].Owner = 0
		}
	}
	for i := range p.Copy {
		p.Copy[i].Owner = 0
	}
	for i := range p.Spill {
		p.Spill[i].Owner = 0
	}
}

// fill sets every field that a value has, each number to another one.
func fill(t *testing.T, v reflect.Value, n *int) {
	t.Helper()
	*n++
	switch v.Interface().(type) {
	case *kvcache.Policy:
		v.Set(reflect.ValueOf(kvcache.Full()))
		return
	case *sampler.Params:
		p := sampler.Default()
		p.TopK = *n
		v.Set(reflect.ValueOf(&p))
		return
	case lora.ID:
		v.Set(reflect.ValueOf(lora.ID{3, byte(*n)}))
		return
	case pooling.Method:
		v.Set(reflect.ValueOf(pooling.Mean))
		return
	case Key:
		v.Set(reflect.ValueOf(Key{2, byte(*n)}))
		return
	case []Key:
		v.Set(reflect.ValueOf([]Key{{1, byte(*n)}, {2}, {3}}))
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			fill(t, v.Field(i), n)
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		fill(t, v.Index(0), n)
		fill(t, v.Index(1), n)
	case reflect.Bool:
		v.SetBool(true)
	case reflect.String:
		v.SetString("text")
	case reflect.Int, reflect.Int32:
		v.SetInt(int64(*n))
	case reflect.Uint32, reflect.Uint64:
		v.SetUint(uint64(*n))
	default:
		t.Fatalf("no value for a %s: teach fill about it", v.Type())
	}
}
