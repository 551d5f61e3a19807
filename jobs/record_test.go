package jobs

import (
	"bytes"
	b64 "encoding/base64"
	"errors"
	"math"
	"reflect"
	"testing"

	"shoal/api"
	"shoal/sampler"
)

func base64(b []byte) string { return b64.StdEncoding.EncodeToString(b) }

func sampleEvents() []Logged {
	inf := float32(math.Inf(-1))
	return []Logged{
		{0, api.Event{Token: 5}},
		{3, api.Event{Token: 0, Logprob: -1.25, Top: []sampler.TokenLogprob{{Token: 7, Logprob: -0.1}, {Token: 0, Logprob: inf}}}},
		{1, api.Event{Token: 9, PromptLogprobs: []api.PromptLogprob{{}, {Logprob: -3, Top: []sampler.TokenLogprob{{Token: 1, Logprob: -2}}}}}},
		{0, api.Event{Token: 2, Finish: api.FinishStop}},
		{1, api.Event{Token: api.NoToken, Finish: api.FinishLength}},
	}
}

func TestEventsReturnExactly(t *testing.T) {
	want := sampleEvents()
	first, got, err := DecodeTokens(EncodeTokens(41, want))
	if err != nil || first != 41 || !reflect.DeepEqual(got, want) {
		t.Fatalf("%v %d\n%+v\n%+v", err, first, got, want)
	}
}

func TestEveryFlippedBitAndEveryCutIsFound(t *testing.T) {
	r := Record{kind: KindTokens, number: 3, attempt: 2, at: 99, payload: EncodeTokens(0, sampleEvents())}
	whole := r.encode("job-a")
	if _, err := decodeRecord("job-a", whole); err != nil {
		t.Fatal(err)
	}
	if _, err := decodeRecord("job-b", whole); !errors.Is(err, ErrDamaged) {
		t.Fatalf("a record of another journal: %v", err)
	}
	for i := range len(whole) * 8 {
		b := bytes.Clone(whole)
		b[i/8] ^= 1 << (i % 8)
		if _, err := decodeRecord("job-a", b); !errors.Is(err, ErrDamaged) {
			t.Fatalf("bit %d: %v", i, err)
		}
	}
	for n := range len(whole) {
		if _, err := decodeRecord("job-a", whole[:n]); !errors.Is(err, ErrDamaged) {
			t.Fatalf("cut to %d: %v", n, err)
		}
	}
}

func FuzzRecord(f *testing.F) {
	r := Record{kind: KindAccept, payload: []byte(`{}`)}
	f.Add(r.encode("j"))
	f.Add([]byte(recordMagic))
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := decodeRecord("j", b)
		if err == nil && !bytes.Equal(got.encode("j"), b) && bytes.Equal(b[5:8], []byte{0, 0, 0}) {
			t.Fatal("a record that decodes does not encode back")
		}
	})
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
