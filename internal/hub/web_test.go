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

// Removing a model whose file is missing leaves the other models of its host.
func TestRemoveURLWithoutItsFile(t *testing.T) {
	b := content(1, 4000)
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(b))
	}))
	t.Cleanup(web.Close)
	s := at(t, nil)
	var paths []string
	var refs []Ref
	for _, name := range []string{"a", "b"} {
		m, err := pull(t, s, web.URL+"/"+name+".gguf")
		if err != nil {
			t.Fatal(err)
		}
		paths, refs = append(paths, m.Path), append(refs, m.Ref)
	}
	if err := os.Remove(paths[0]); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Remove(refs[0]); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(paths[1]); err != nil {
		t.Error(err)
	}
	if all, err := s.List(); err != nil || len(all) != 1 || all[0].Ref != refs[1] {
		t.Errorf("left: %+v, %v", all, err)
	}
}

// A model cannot be removed while its newer version is fetched.
func TestRemoveURLWhileFetched(t *testing.T) {
	b, etag, asked, resume := content(1, 4000), `"one"`, make(chan struct{}), make(chan struct{})
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("ETag", etag)
		if etag == `"two"` && r.Method == http.MethodGet {
			asked <- struct{}{}
			<-resume
		}
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(b))
	}))
	t.Cleanup(web.Close)
	s := at(t, nil)
	m, err := pull(t, s, web.URL+"/a.gguf")
	if err != nil {
		t.Fatal(err)
	}
	b, etag = content(2, 5000), `"two"`
	ended := make(chan error, 1)
	go func() {
		_, err := s.Pull(t.Context(), m.Ref, nil)
		ended <- err
	}()
	<-asked
	if _, err := s.Remove(m.Ref); !errors.Is(err, ErrBusy) {
		t.Errorf("removed: %v", err)
	}
	close(resume)
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if got, err := os.ReadFile(m.Path); err != nil || !bytes.Equal(got, b) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	if _, err := s.Remove(m.Ref); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(m.Path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it is still there: %v", err)
	}
}
