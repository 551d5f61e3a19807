package hub

import (
	"bytes"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/internal/hub/hubtest"
)

func TestPullURL(t *testing.T) {
	b, etag, cut := content(1, 400_000), `"one"`, int64(0)
	var status int
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case status != 0:
			w.WriteHeader(status)
		case r.Method == http.MethodHead:
			w.WriteHeader(http.StatusForbidden) // as a signed URL for GET
		default:
			w.Header().Set("ETag", etag)
			if cut > 0 && r.Header.Get("Range") != "" {
				w.WriteHeader(http.StatusNotFound)
				return
			}
			http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(b))
		}
	}))
	t.Cleanup(web.Close)
	s := at(t, nil)
	text := web.URL + "/d/m.gguf?v=1"
	m, err := pull(t, s, text)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(m.Path); err != nil || !bytes.Equal(got, b) || m.Name != "m" {
		t.Errorf("%+v has %d bytes, %v", m, len(got), err)
	}
	if sum, err := os.ReadFile(m.Path + sumSuffix); err != nil || strings.TrimSpace(string(sum)) != hubtest.SHA256(b) {
		t.Errorf("the recorded hash is %q, %v", sum, err)
	}
	// A pull that ended before it wrote the hash and the reference is completed.
	for _, left := range []string{m.Path + sumSuffix, filepath.Join(filepath.Dir(m.Path), referenceFile)} {
		os.Remove(left)
		if _, err = pull(t, s, text); err != nil {
			t.Fatal(err)
		}
		if sum, err := os.ReadFile(m.Path + sumSuffix); err != nil || strings.TrimSpace(string(sum)) != hubtest.SHA256(b) {
			t.Errorf("the recorded hash is %q, %v", sum, err)
		}
		if all, err := s.List(); err != nil || len(all) != 1 {
			t.Errorf("the list has %v, %v", all, err)
		}
	}
	// A part of this version is continued, one of another version is not.
	os.Remove(m.Path)
	old := m.Path + "." + short(etag) + incomplete
	os.WriteFile(old, b[:300_000], 0o644)
	if _, err = pull(t, s, text); err != nil {
		t.Fatal(err)
	}
	os.Remove(m.Path)
	os.WriteFile(old, b[:300_000], 0o644)
	b, etag = content(2, 400_000), `"two"`
	if m, err = pull(t, s, text); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(m.Path); err != nil || !bytes.Equal(got, b) {
		t.Errorf("%d bytes, %v: an old part was continued", len(got), err)
	}
	for code, want := range map[int]error{404: ErrNotFound, 403: ErrGated, 418: ErrProtocol} {
		status = code
		if _, err := pull(t, at(t, nil), text); !errors.Is(err, want) {
			t.Errorf("%d: %v", code, err)
		}
	}
}
