// Package hubtest has a hub and a registry on loopback that speak the protocols of Hugging Face and of
// Ollama, with the faults that a test sets.
package hubtest

import (
	"crypto/sha1" //nolint:gosec // git's blob ids
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Repo is a repository at one commit.
type Repo struct {
	Files   map[string][]byte
	LFS     map[string]bool // which files are large: served by the CDN, named by SHA-256
	Unlists map[string]bool // files that the listing leaves out
	Gated   bool            // needs Token
	Fixed   bool            // Files never change, so each file is hashed once

	sums sync.Map // hashes of a Fixed repository, by function and name
}

// sum returns a hash of a file.
func (r *Repo) sum(kind, name string, hash func([]byte) string) string {
	if !r.Fixed {
		return hash(r.Files[name])
	}
	once, _ := r.sums.LoadOrStore(kind+name, sync.OnceValue(func() string { return hash(r.Files[name]) }))
	return once.(func() string)()
}

func (r *Repo) gitBlob(name string) string { return r.sum("git ", name, GitBlob) }
func (r *Repo) sha256(name string) string  { return r.sum("sha256 ", name, SHA256) }

// Hub is a hub with a CDN on another port. Its fields are set under Lock, or before the first
// request of this process.
type Hub struct {
	sync.Mutex
	URL, CDNURL string
	Token       string           // required by gated repositories
	Repos       map[string]*Repo // by org/name
	Renamed     map[string]string
	NamesOnly   bool                               // the listing has no sizes and hashes, as of some mirrors
	Listing     func(repo string) ([]byte, bool)   // replaces a listing
	Fault       func(r *http.Request, n int) Fault // of the hub; n counts its requests from 1
	CDNFault    func(r *http.Request, n int) Fault // of the CDN
	Signatures  int                                // requests for which an address of the CDN is valid; 0: forever

	requests, cdnRequests int
	signed                int
	log                   []string
	leaked                []string
	left                  map[string]int
	servers               []*httptest.Server
	stop                  chan struct{}
}

// Start runs a hub until Close.
func Start() *Hub {
	h := &Hub{Repos: map[string]*Repo{}, Renamed: map[string]string{}, left: map[string]int{}, stop: make(chan struct{})}
	hub, cdn := httptest.NewServer(http.HandlerFunc(h.serve)), httptest.NewServer(http.HandlerFunc(h.serveCDN))
	h.URL, h.CDNURL, h.servers = hub.URL, cdn.URL, []*httptest.Server{hub, cdn}
	return h
}

// Close ends the servers and their connections.
func (h *Hub) Close() {
	close(h.stop)
	for _, s := range h.servers {
		s.CloseClientConnections()
		s.Close()
	}
}

// Log lists the requests so far, as "GET /path".
func (h *Hub) Log() []string {
	h.Lock()
	defer h.Unlock()
	return slices.Clone(h.log)
}

// Leaked lists requests to the CDN that carried a token.
func (h *Hub) Leaked() []string {
	h.Lock()
	defer h.Unlock()
	return slices.Clone(h.leaked)
}

// Commit returns the commit of a repository: it changes with its content.
func (r *Repo) Commit() string {
	s := sha1.New()
	for _, name := range slices.Sorted(maps.Keys(r.Files)) {
		fmt.Fprintln(s, name, r.gitBlob(name))
	}
	return fmt.Sprintf("%x", s.Sum(nil))
}

// GitBlob is git's id of a content; SHA256 the one of LFS.
func GitBlob(b []byte) string {
	return fmt.Sprintf("%x", sha1.Sum(append(fmt.Appendf(nil, "blob %d\x00", len(b)), b...)))
}

func SHA256(b []byte) string { return fmt.Sprintf("%x", sha256.Sum256(b)) }

func (h *Hub) serve(w http.ResponseWriter, r *http.Request) {
	h.Lock()
	h.requests++
	h.log = append(h.log, r.Method+" "+r.URL.Path)
	var fault Fault
	if h.Fault != nil {
		fault = h.Fault(r, h.requests)
	}
	h.Unlock()
	if fault.refuse(w) {
		return
	}
	path := strings.TrimPrefix(r.URL.Path, "/")
	if rest, ok := strings.CutPrefix(path, "api/models/"); ok {
		h.serveAPI(w, r, rest)
		return
	}
	if path == "api/models" {
		h.search(w, r.URL.Query().Get("search"))
		return
	}
	parts := strings.SplitN(path, "/", 5)
	if len(parts) != 5 || parts[2] != "resolve" {
		fail(w, http.StatusNotFound, "")
		return
	}
	id := parts[0] + "/" + parts[1]
	h.Lock()
	to, renamed := h.Renamed[id]
	h.Unlock()
	if renamed {
		w.Header().Set("Location", "/"+to+"/"+strings.Join(parts[2:], "/"))
		w.WriteHeader(http.StatusTemporaryRedirect)
		return
	}
	h.resolve(w, r, id, parts[3], parts[4], fault)
}

func fail(w http.ResponseWriter, status int, code string) {
	if code != "" {
		w.Header().Set("X-Error-Code", code)
		w.Header().Set("X-Error-Message", code)
	}
	w.WriteHeader(status)
}

// repo finds a repository that the request may read at a revision.
func (h *Hub) repo(w http.ResponseWriter, r *http.Request, id, revision string, content bool) *Repo {
	repo := h.Repos[id]
	if repo == nil {
		fail(w, http.StatusUnauthorized, "RepoNotFound")
		return nil
	}
	if revision != "main" && revision != repo.Commit() && revision != "v1" {
		fail(w, http.StatusNotFound, "RevisionNotFound")
		return nil
	}
	if repo.Gated && content && r.Header.Get("Authorization") != "Bearer "+h.Token {
		fail(w, http.StatusForbidden, "GatedRepo")
		return nil
	}
	return repo
}

func (h *Hub) serveAPI(w http.ResponseWriter, r *http.Request, rest string) {
	h.Lock()
	defer h.Unlock()
	parts := strings.SplitN(rest, "/", 4)
	if len(parts) == 3 && parts[2] == "refs" {
		fmt.Fprint(w, `{"branches":[{"name":"main"}],"tags":[{"name":"v1"}]}`)
		return
	}
	if len(parts) == 4 && parts[2] == "tree" { // requested by Python's snapshot_download
		h.tree(w, r, parts[0]+"/"+parts[1], parts[3])
		return
	}
	if len(parts) != 4 || parts[2] != "revision" {
		fail(w, http.StatusNotFound, "")
		return
	}
	id := parts[0] + "/" + parts[1]
	if h.Listing != nil {
		if text, ok := h.Listing(id); ok {
			_, _ = w.Write(text)
			return
		}
	}
	repo := h.repo(w, r, id, parts[3], false)
	if repo == nil {
		return
	}
	var siblings []map[string]any
	for _, name := range slices.Sorted(maps.Keys(repo.Files)) {
		if repo.Unlists[name] {
			continue
		}
		b := repo.Files[name]
		s := map[string]any{"rfilename": name}
		if !h.NamesOnly && r.URL.Query().Get("blobs") == "true" {
			s["size"], s["blobId"] = len(b), repo.gitBlob(name)
			if repo.LFS[name] {
				s["blobId"] = GitBlob([]byte("pointer to " + repo.sha256(name)))
				s["lfs"] = map[string]any{"sha256": repo.sha256(name), "size": len(b), "pointerSize": 134}
			}
		}
		siblings = append(siblings, s)
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{"id": id, "sha": repo.Commit(), "siblings": siblings, "private": false, "gated": false})
}

func (h *Hub) tree(w http.ResponseWriter, r *http.Request, id, revision string) {
	repo := h.repo(w, r, id, revision, false)
	if repo == nil {
		return
	}
	var out []map[string]any
	for _, name := range slices.Sorted(maps.Keys(repo.Files)) {
		b := repo.Files[name]
		f := map[string]any{"type": "file", "path": name, "size": len(b), "oid": repo.gitBlob(name)}
		if repo.LFS[name] {
			f["lfs"] = map[string]any{"oid": repo.sha256(name), "size": len(b), "pointerSize": 134}
		}
		out = append(out, f)
	}
	_ = json.NewEncoder(w).Encode(out)
}

func (h *Hub) search(w http.ResponseWriter, q string) {
	h.Lock()
	defer h.Unlock()
	var out []map[string]string
	for _, id := range slices.Sorted(maps.Keys(h.Repos)) {
		if strings.Contains(strings.ToLower(id), strings.ToLower(q)) {
			out = append(out, map[string]string{"id": id})
		}
	}
	_ = json.NewEncoder(w).Encode(out)
}

func (h *Hub) resolve(w http.ResponseWriter, r *http.Request, id, revision, name string, fault Fault) {
	h.Lock()
	repo := h.repo(w, r, id, revision, true)
	if repo == nil {
		h.Unlock()
		return
	}
	b, ok := repo.Files[name]
	large := repo.LFS[name]
	h.Unlock()
	w.Header().Set("X-Repo-Commit", repo.Commit())
	if !ok {
		fail(w, http.StatusNotFound, "EntryNotFound")
		return
	}
	if !large {
		fault.serve(w, r, b, strconv.Quote(repo.gitBlob(name)), h.stop)
		return
	}
	w.Header().Set("X-Linked-Etag", strconv.Quote(repo.sha256(name)))
	w.Header().Set("X-Linked-Size", strconv.Itoa(len(b)))
	w.Header().Set("ETag", strconv.Quote(GitBlob([]byte("pointer"))))
	h.Lock()
	h.signed++
	sig := strconv.Itoa(h.signed)
	h.left[sig] = h.Signatures
	h.Unlock()
	w.Header().Set("Location", h.CDNURL+"/"+url.PathEscape(id)+"/"+url.PathEscape(name)+"?sig="+sig)
	w.WriteHeader(http.StatusFound)
}

func (h *Hub) serveCDN(w http.ResponseWriter, r *http.Request) {
	id, name, _ := strings.Cut(strings.TrimPrefix(r.URL.EscapedPath(), "/"), "/")
	id, _ = url.PathUnescape(id)
	name, _ = url.PathUnescape(name)
	h.Lock()
	h.cdnRequests++
	h.log = append(h.log, "CDN "+r.Method+" "+r.URL.Path+" "+r.Header.Get("Range"))
	if a := r.Header.Get("Authorization"); a != "" {
		h.leaked = append(h.leaked, r.URL.String())
	}
	var fault Fault
	if h.CDNFault != nil {
		fault = h.CDNFault(r, h.cdnRequests)
	}
	sig := r.URL.Query().Get("sig")
	if left, ok := h.left[sig]; !ok || left == 1 && h.Signatures > 0 {
		delete(h.left, sig)
		if !ok {
			fault = Fault{Status: http.StatusForbidden}
		}
	} else if h.Signatures > 0 {
		h.left[sig]--
	}
	repo := h.Repos[id]
	if repo == nil {
		repo = &Repo{}
	}
	b := repo.Files[name]
	h.Unlock()
	fault.serve(w, r, b, strconv.Quote("cdn-"+repo.sha256(name)[:16]), h.stop)
}
