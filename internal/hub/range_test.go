package hub

import (
	"bytes"
	"errors"
	"testing"

	"github.com/shoal-llm/shoal/internal/hub/hubtest"
)

// TestRange reads parts of a file through the redirects of a hub. Names, commits and ranges that are none
// send no request.
func TestRange(t *testing.T) {
	repo := oneFile()
	h := start(t, map[string]*hubtest.Repo{"org/name": repo})
	s := at(t, h)
	origin, want := "org/name@"+repo.Commit(), repo.Files["model.safetensors"]
	for _, r := range [][2]int64{{0, 1}, {100, 70_000}, {int64(len(want)) - 5, int64(len(want))}, {0, int64(len(want))}} {
		got, err := s.Range(t.Context(), origin, "model.safetensors", r[0], r[1])
		if err != nil || !bytes.Equal(got, want[r[0]:r[1]]) {
			t.Errorf("bytes %d to %d: %d bytes, %v", r[0], r[1], len(got), err)
		}
	}
	if got, err := s.Range(t.Context(), origin, "model.safetensors", int64(len(want))-5, int64(len(want))+5); err == nil {
		t.Errorf("%d bytes beyond the end", len(got))
	}
	before := len(h.Log())
	for _, x := range []struct {
		origin, file string
		from, to     int64
		want         error
	}{
		{"org/name", "model.safetensors", 0, 1, ErrRef}, {"org/name@main", "model.safetensors", 0, 1, ErrRef},
		{"../x@" + repo.Commit(), "model.safetensors", 0, 1, ErrRef}, {origin, "../config.json", 0, 1, ErrRef},
		{origin, "model.safetensors", 5, 5, ErrRef}, {origin, "model.safetensors", -1, 5, ErrRef},
		{origin, "model.safetensors", 0, 1 << 40, ErrRef},
	} {
		if _, err := s.Range(t.Context(), x.origin, x.file, x.from, x.to); !errors.Is(err, x.want) {
			t.Errorf("%+v: %v", x, err)
		}
	}
	if after := len(h.Log()); after != before {
		t.Errorf("%d requests were sent", after-before)
	}
}
