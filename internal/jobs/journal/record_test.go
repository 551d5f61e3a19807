package journal

import (
	"bytes"
	"errors"
	"testing"
)

func TestEveryFlippedBitAndEveryCutIsFound(t *testing.T) {
	r := Record{Kind: 3, Number: 3, Attempt: 2, At: 99, Payload: []byte("the events of an attempt")}
	whole := r.Encode("job-a")
	if _, err := Decode("job-a", whole); err != nil {
		t.Fatal(err)
	}
	if _, err := Decode("job-b", whole); !errors.Is(err, ErrDamaged) {
		t.Fatalf("a record of another journal: %v", err)
	}
	for i := range len(whole) * 8 {
		b := bytes.Clone(whole)
		b[i/8] ^= 1 << (i % 8)
		if _, err := Decode("job-a", b); !errors.Is(err, ErrDamaged) {
			t.Fatalf("bit %d: %v", i, err)
		}
	}
	for n := range len(whole) {
		if _, err := Decode("job-a", whole[:n]); !errors.Is(err, ErrDamaged) {
			t.Fatalf("cut to %d: %v", n, err)
		}
	}
}

func FuzzRecord(f *testing.F) {
	r := Record{Kind: 1, Payload: []byte(`{}`)}
	f.Add(r.Encode("j"))
	f.Add([]byte(Magic))
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := Decode("j", b)
		if err == nil && !bytes.Equal(got.Encode("j"), b) && bytes.Equal(b[5:8], []byte{0, 0, 0}) {
			t.Fatal("a record that decodes does not encode back")
		}
	})
}
