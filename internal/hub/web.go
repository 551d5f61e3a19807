package hub

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/shoal-llm/shoal/internal/hub/layout"
)

// sumSuffix marks the file that holds the SHA-256 of a file from a URL, for CheckFile later.
const sumSuffix = ".sha256"

const urlLock = ".lock" // added to the path of a file from a URL

// urlPath returns the path at which the file of a URL is kept: OWN/url/HOST/HASH OF THE URL/FILE.gguf.
func (s *Store) urlPath(r Ref) (string, error) {
	u, err := url.Parse(r.URL)
	if err != nil {
		return "", fmt.Errorf("%w: %s", ErrRef, r.URL)
	}
	host := strings.NewReplacer(":", "-", "[", "", "]", "").Replace(u.Host)
	return filepath.Join(s.s.ModelsDir, "url", host, short(r.URL), path.Base(u.Path)), nil
}

// pullURL fetches a file of a web server. Such a server rarely sends a hash, so
// only the length can be checked. The hash of the received bytes is recorded.
func (s *Store) pullURL(ctx context.Context, r Ref, t *tracker) (Model, error) {
	at, err := s.urlPath(r)
	if err != nil {
		return Model{}, err
	}
	b := &blob{name: path.Base(at), url: r.URL, path: at, lock: at + urlLock}
	b.send = func(req *http.Request) (*http.Response, error) {
		resp, err := s.c.do(req, nil)
		return resp, explainURL(r, err)
	}
	f := File{Name: b.name}
	err = s.c.retry(ctx, requestTries, nil, func() (bool, error) {
		var resp *http.Response
		var err error
		for _, method := range []string{http.MethodHead, http.MethodGet} { // signed URLs refuse HEAD
			req, made := http.NewRequestWithContext(ctx, method, r.URL, nil)
			if made != nil {
				return false, made
			}
			var status *statusError
			if resp, err = s.c.do(req, nil); !errors.As(err, &status) || errors.Is(err, ErrUnreachable) {
				break
			}
		}
		if err != nil {
			return false, explainURL(r, err)
		}
		resp.Body.Close()
		if e := resp.Header.Get("ETag"); strings.HasPrefix(e, `"`) {
			b.etag = e
		}
		if resp.ContentLength < 0 {
			return false, fmt.Errorf("%w: %s did not send the size of %s, so a truncated download could not be detected",
				ErrProtocol, hostOf(r.URL), b.name)
		}
		f.Size = resp.ContentLength
		return false, nil
	})
	if err != nil {
		return Model{}, err
	}
	if b.size = f.Size; b.size > maxFileBytes {
		return Model{}, fmt.Errorf("%w: %s has %d bytes; at most %d", ErrProtocol, b.name, b.size, int64(maxFileBytes))
	}
	if b.etag != "" { // the part of an older version does not belong to this one
		b.part = at + "." + short(b.etag) + incomplete
	}
	reference := filepath.Join(filepath.Dir(at), referenceFile)
	if !b.present() {
		if err := os.Remove(at + sumSuffix); err != nil && !errors.Is(err, fs.ErrNotExist) { // of an older version
			return Model{}, onDisk(err)
		}
	}
	err = newFetcher(s, t).all(ctx, filepath.Dir(at), r.URL, []*blob{b}, func(int) (err error) {
		if b.sum == "" { // it was here, perhaps of a pull that ended before it wrote the files below
			if isFile(reference) && isFile(at+sumSuffix) {
				return nil
			}
			t.wait(b.name, "reading "+b.name+", whose hash is not recorded")
			b.sum, err = sumOf(at)
			if t.wait(b.name, ""); err != nil {
				return onDisk(err)
			}
		}
		if err := writeFile(reference, []byte(r.URL+"\n")); err != nil {
			return err
		}
		return writeFile(at+sumSuffix, []byte(b.sum+"\n"))
	})
	if err != nil {
		return Model{}, err
	}
	return s.findURL(r)
}

func isFile(path string) bool {
	st, err := os.Stat(path)
	return err == nil && st.Mode().IsRegular()
}

// sumOf returns the SHA-256 of a file.
func sumOf(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return fmt.Sprintf("%x", h.Sum(nil)), nil
}

func explainURL(r Ref, err error) error {
	var s *statusError
	switch {
	case !errors.As(err, &s) || errors.Is(err, ErrUnreachable):
		return err
	case s.status == http.StatusNotFound || s.status == http.StatusGone:
		return fmt.Errorf("%w: %s: %w", ErrNotFound, r.URL, s)
	case s.status == http.StatusUnauthorized || s.status == http.StatusForbidden:
		return fmt.Errorf("%w: %s: %w; a file behind a login has to be downloaded by hand", ErrGated, r.URL, s)
	}
	return fmt.Errorf("%w: %w", ErrProtocol, s)
}

func (s *Store) findURL(r Ref) (Model, error) {
	at, err := s.urlPath(r)
	if err != nil {
		return Model{}, err
	}
	st, err := os.Stat(at)
	if err != nil || !st.Mode().IsRegular() {
		return Model{}, notHere(r)
	}
	return Model{Ref: r, Name: layout.NameOf(at), Path: at, Bytes: st.Size(), Files: 1}, nil
}
