package hub

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"
)

// hubAPI speaks the protocol of Hugging Face's hub.
type hubAPI struct {
	c        *client
	endpoint string
	token    string
}

// listing is a repository at one commit.
type listing struct {
	commit string
	files  []File
}

// send adds the token to requests that go to the hub itself.
func (h *hubAPI) send(req *http.Request) (*http.Response, error) {
	if base, err := url.Parse(h.endpoint); h.token != "" && err == nil && sameOrigin(base, req.URL) {
		req.Header.Set("Authorization", "Bearer "+h.token)
	}
	return h.c.do(req, nil)
}

func (h *hubAPI) get(ctx context.Context, path string, to any) error {
	body, err := h.c.fetchBody(ctx, maxListing, func() (*http.Request, error) {
		return http.NewRequestWithContext(ctx, http.MethodGet, h.endpoint+path, nil)
	}, h.send)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(body, to); err != nil {
		return fmt.Errorf("%w: %s is not a hub, or its answer was cut: %w", ErrProtocol, h.endpoint, err)
	}
	return nil
}

// repoPath returns a repository in a URL.
func repoPath(repo string) string {
	owner, name, _ := strings.Cut(repo, "/")
	return url.PathEscape(owner) + "/" + url.PathEscape(name)
}

// fileURL returns the URL of a file of a commit.
func (h *hubAPI) fileURL(repo, revision, name string) string {
	parts := strings.Split(name, "/")
	for i := range parts {
		parts[i] = url.PathEscape(parts[i])
	}
	return h.endpoint + "/" + repoPath(repo) + "/resolve/" + url.PathEscape(revision) + "/" + strings.Join(parts, "/")
}

// list asks which commit a revision is, and which files it has.
func (h *hubAPI) list(ctx context.Context, r Ref) (listing, error) {
	var got struct {
		SHA      string `json:"sha"`
		Siblings []struct {
			Name   string `json:"rfilename"`
			Size   *int64 `json:"size"`
			BlobID string `json:"blobId"`
			LFS    *struct {
				SHA256 string `json:"sha256"`
				OID    string `json:"oid"`
				Size   *int64 `json:"size"`
			} `json:"lfs"`
		} `json:"siblings"`
	}
	if err := h.get(ctx, "/api/models/"+repoPath(r.Repo)+"/revision/"+url.PathEscape(r.revision())+"?blobs=true", &got); err != nil {
		return listing{}, h.explain(ctx, r, "", err)
	}
	l := listing{commit: got.SHA}
	switch {
	case !commitHash.MatchString(got.SHA):
		return l, fmt.Errorf("%w: %s names no commit of %s; is HF_ENDPOINT the address of a hub?", ErrProtocol, h.endpoint, r)
	case len(got.Siblings) > maxFiles:
		return l, fmt.Errorf("%w: %s has %d files; at most %d", ErrProtocol, r, len(got.Siblings), maxFiles)
	}
	seen := map[string]bool{}
	for _, s := range got.Siblings {
		if err := CheckFileName(s.Name); err != nil {
			return l, fmt.Errorf("%w: %s on %s: %w", ErrProtocol, r, h.endpoint, err)
		}
		if seen[s.Name] {
			return l, fmt.Errorf("%w: %s lists the file %q twice", ErrProtocol, h.endpoint, s.Name)
		}
		seen[s.Name] = true
		f := File{Name: s.Name, Size: -1}
		size, digest := s.Size, digestOf(s.BlobID)
		if s.LFS != nil {
			digest = digestOf(s.LFS.SHA256 + s.LFS.OID)
			if s.LFS.SHA256 != "" {
				digest = digestOf(s.LFS.SHA256)
			}
			if s.LFS.Size != nil {
				size = s.LFS.Size
			}
		}
		if size != nil {
			f.Size, f.Digest = *size, digest
		}
		l.files = append(l.files, f)
	}
	return l, nil
}

// head requests the size and the hash of a file: some mirrors list names only.
func (h *hubAPI) head(ctx context.Context, r Ref, commit string, f *File) error {
	var first http.Header // of the hub itself, whose redirect leads to another host
	one := *h.c.http
	one.CheckRedirect = func(req *http.Request, via []*http.Request) error {
		if first == nil || first.Get("X-Repo-Commit") == "" {
			first = req.Response.Header
		}
		if sameOrigin(req.URL, via[0].URL) && len(via) < maxRedirects { // a repository that was renamed
			return nil
		}
		return http.ErrUseLastResponse
	}
	return h.c.retry(ctx, requestTries, nil, func() (bool, error) {
		first = nil
		req, err := http.NewRequestWithContext(ctx, http.MethodHead, h.fileURL(r.Repo, commit, f.Name), nil)
		if err != nil {
			return false, err
		}
		own := &hubAPI{c: &client{http: &one, stall: h.c.stall, base: h.c.base}, endpoint: h.endpoint, token: h.token}
		resp, err := own.send(req)
		var status *statusError
		switch {
		case err == nil:
			resp.Body.Close()
			if first == nil || first.Get("X-Linked-Etag") == "" {
				first = resp.Header
			}
		case errors.As(err, &status) && status.status/100 == 3 && first != nil:
		default:
			return false, h.explain(ctx, r, f.Name, err)
		}
		return false, f.take(first)
	})
}

// take reads the headers of a file: X-Linked-* are of the file where a redirect, or an LFS
// pointer, is in between.
func (f *File) take(h http.Header) error {
	size, etag := h.Get("X-Linked-Size"), h.Get("X-Linked-Etag")
	if size == "" {
		size = h.Get("Content-Length")
	}
	if etag == "" {
		etag = h.Get("ETag")
	}
	var n int64
	if _, err := fmt.Sscan(size, &n); err != nil || n < 0 {
		return fmt.Errorf("%w: the server did not send the size of %s", ErrProtocol, f.Name)
	}
	f.Size, f.Digest = n, digestOf(etag)
	return nil
}

// explain turns a refusal of the hub into an error with the action to take.
func (h *hubAPI) explain(ctx context.Context, r Ref, file string, err error) error {
	var s *statusError
	if !errors.As(err, &s) || errors.Is(err, ErrUnreachable) {
		return err
	}
	if base, parsed := url.Parse(h.endpoint); parsed == nil && s.host != base.Host { // where a redirect led
		return fmt.Errorf("%w: %w", ErrProtocol, s)
	}
	page := h.endpoint + "/" + r.Repo
	switch {
	case s.code == "GatedRepo" && h.token == "":
		return fmt.Errorf("%w: the licence of %s must be accepted: open %s, accept it, and set HF_TOKEN to a token of that account "+
			"(%s/settings/tokens)", ErrGated, r.Repo, page, h.endpoint)
	case s.code == "GatedRepo":
		return fmt.Errorf("%w: the account of this token has not accepted the licence of %s, or waits for an answer, or the token may not "+
			"read gated repositories: open %s", ErrGated, r.Repo, page)
	case s.code == "DisabledRepo":
		return fmt.Errorf("%w: %s has disabled %s", ErrGated, h.endpoint, r.Repo)
	case s.code == "RevisionNotFound":
		return fmt.Errorf("%w: %s has no revision %s%s", ErrNotFound, r.Repo, r.revision(), h.revisions(ctx, r))
	case s.code == "EntryNotFound" || s.status == http.StatusNotFound && file != "":
		return fmt.Errorf("%w: %s has no file %s", ErrNotFound, r, file)
	case s.code == "RepoNotFound" || s.code == "" && (s.status == http.StatusUnauthorized || s.status == http.StatusNotFound):
		text := "a private one needs HF_TOKEN"
		if h.token != "" {
			text = "or the token of HF_TOKEN is invalid or may not read it"
		}
		return fmt.Errorf("%w: %s has no repository %s, %s%s", ErrNotFound, h.endpoint, r.Repo, text, h.similar(ctx, r))
	case s.status == http.StatusUnauthorized || s.status == http.StatusForbidden:
		return fmt.Errorf("%w: %s: %w: check HF_TOKEN and that its account may read %s", ErrGated, r.Repo, s, page)
	}
	return fmt.Errorf("%w: %w", ErrProtocol, s)
}

// requestDetails requests details for an error text, for at most five seconds. It reports whether to was decoded.
func (h *hubAPI) requestDetails(ctx context.Context, path string, to any) bool {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, h.endpoint+path, nil)
	if err != nil {
		return false
	}
	resp, err := h.send(req)
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	body, err := readAtMost(resp.Body, maxManifest)
	return err == nil && json.Unmarshal(body, to) == nil
}

// similar lists repositories with a similar name.
func (h *hubAPI) similar(ctx context.Context, r Ref) string {
	_, name, _ := strings.Cut(r.Repo, "/")
	var got []struct{ ID string }
	var names []string
	for _, q := range []string{r.Repo, name} {
		if h.requestDetails(ctx, "/api/models?limit=5&search="+url.QueryEscape(q), &got) {
			for _, g := range got {
				if checkRepo(g.ID) == nil && !slices.Contains(names, g.ID) {
					names = append(names, g.ID)
				}
			}
		}
	}
	if len(names) == 0 {
		return ""
	}
	return "; similar names are" + listed(names, 5)
}

// revisions lists branches and tags.
func (h *hubAPI) revisions(ctx context.Context, r Ref) string {
	type ref struct{ Name string }
	var got struct{ Branches, Tags []ref }
	if !h.requestDetails(ctx, "/api/models/"+repoPath(r.Repo)+"/refs", &got) {
		return ""
	}
	var names []string
	for _, b := range append(got.Branches, got.Tags...) {
		if checkRevision(b.Name) == nil {
			names = append(names, b.Name)
		}
	}
	if len(names) == 0 {
		return ""
	}
	return "; it has" + listed(names, 20)
}

// complement requests the sizes and hashes that the listing left out.
func (h *hubAPI) complement(ctx context.Context, r Ref, commit string, files []File) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var group sync.WaitGroup
	defer group.Wait()
	slots := make(chan struct{}, filesAtOnce)
	errs := make([]error, len(files))
	for i := range files {
		if files[i].Size >= 0 && files[i].Digest != "" {
			continue
		}
		group.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			if errs[i] = h.head(ctx, r, commit, &files[i]); errs[i] != nil {
				cancel(errs[i])
			}
		})
	}
	group.Wait()
	return context.Cause(ctx)
}
