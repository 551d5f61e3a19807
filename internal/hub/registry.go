package hub

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"

	"github.com/shoal-llm/shoal/internal/engine/modelfile"
	"github.com/shoal-llm/shoal/internal/hub/layout"
)

// registry speaks the part of the OCI distribution protocol that a pull needs: manifests,
// blobs by digest, and tokens for readers without an account.
type registry struct {
	c     *client
	base  string // scheme://host
	mu    sync.Mutex
	token string
}

// Media types of manifests that are read.
const manifestTypes = "application/vnd.docker.distribution.manifest.v2+json, application/vnd.oci.image.manifest.v1+json"

// Media types of layers. A model is the first; the texts are kept next to it.
var (
	modelLayers = map[string]bool{"application/vnd.ollama.image.model": true, "application/vnd.docker.ai.gguf.v3": true}
	textLayers  = map[string]string{
		"application/vnd.ollama.image.template": "template",
		"application/vnd.ollama.image.system":   "system",
		"application/vnd.ollama.image.params":   "params.json",
		"application/vnd.ollama.image.license":  "license",
	}
)

const maxTextLayer = 1 << 20

type layer struct {
	MediaType string `json:"mediaType"`
	Digest    string `json:"digest"`
	Size      int64  `json:"size"`
}

type manifest struct {
	MediaType string  `json:"mediaType"`
	Layers    []layer `json:"layers"`
	Manifests []any   `json:"manifests"` // of an index of several platforms
}

// parts returns the layer with the weights, and the layers of text that are kept next to it, by file name.
func (m manifest) parts(r Ref) (model layer, texts map[string]layer, err error) {
	texts = map[string]layer{}
	if len(m.Manifests) > 0 {
		return model, nil, fmt.Errorf("%w: %s is an index of images for several platforms, not a model", ErrUnsupported, r)
	}
	for _, l := range m.Layers {
		switch {
		case !ociDigest.MatchString(l.Digest) || l.Size < 0 || l.Size > maxFileBytes:
			return model, nil, fmt.Errorf("%w: the manifest of %s has a layer of %d bytes with the digest %q",
				ErrProtocol, r, l.Size, clean(l.Digest))
		case modelLayers[l.MediaType] && model.Digest != "":
			return model, nil, fmt.Errorf("%w: %s has several files of weights", ErrUnsupported, r)
		case modelLayers[l.MediaType]:
			model = l
		case l.MediaType == "application/vnd.ollama.image.adapter":
			return model, nil, fmt.Errorf("%w: %s is an adapter over another model", ErrUnsupported, r)
		case textLayers[l.MediaType] != "" && l.Size <= maxTextLayer:
			if name := textLayers[l.MediaType]; texts[name].Digest == "" {
				texts[name] = l
			}
		}
	}
	if model.Digest == "" {
		return model, nil, fmt.Errorf("%w: %s has no GGUF layer", ErrUnsupported, r)
	}
	return model, texts, nil
}

func parseManifest(r Ref, text []byte) (m manifest, err error) {
	if err := json.Unmarshal(text, &m); err != nil {
		return m, fmt.Errorf("%w: the manifest of %s: %w", ErrProtocol, r, err)
	}
	if want, ok := strings.CutPrefix(r.Tag, "sha256:"); ok && fmt.Sprintf("%x", sha256.Sum256(text)) != want {
		return m, fmt.Errorf("%w: the manifest of %s has another digest", ErrDamaged, r)
	}
	return m, nil
}

func newRegistry(c *client, host string) *registry {
	scheme := "https"
	if isLoopback(host) { // as docker and Ollama have it for tests
		scheme = "http"
	}
	return &registry{c: c, base: scheme + "://" + host}
}

func isLoopback(host string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	ip := net.ParseIP(strings.Trim(host, "[]"))
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// send adds the token to requests to the registry. If the registry requires a token, send requests one.
func (g *registry) send(req *http.Request) (*http.Response, error) {
	own := strings.HasPrefix(req.URL.String(), g.base+"/")
	for try := 0; ; try++ {
		g.mu.Lock()
		token := g.token
		g.mu.Unlock()
		if own && token != "" {
			req.Header.Set("Authorization", "Bearer "+token)
		}
		var challenge string
		resp, err := g.c.do(req, func(h http.Header) { challenge = h.Get("WWW-Authenticate") })
		var s *statusError
		if !errors.As(err, &s) || s.status != http.StatusUnauthorized || !own || try > 0 {
			return resp, err
		}
		if err := g.authorise(req.Context(), challenge); err != nil {
			return nil, err
		}
	}
}

var authParam = regexp.MustCompile(`([A-Za-z]+)="([^"]*)"`)

// authorise answers a challenge: Bearer realm="URL",service="...",scope="...".
func (g *registry) authorise(ctx context.Context, challenge string) error {
	params := map[string]string{}
	if kind, rest, _ := strings.Cut(strings.TrimSpace(challenge), " "); strings.EqualFold(kind, "Bearer") {
		for _, p := range authParam.FindAllStringSubmatch(rest, 16) {
			params[strings.ToLower(p[1])] = p[2]
		}
	}
	realm, err := url.Parse(params["realm"])
	if err != nil || realm.Host == "" || realm.Scheme != "https" && (realm.Scheme != "http" || !isLoopback(realm.Host)) {
		return fmt.Errorf("%w: %s requires a login of an unsupported kind (%q); only public models can be pulled from it",
			ErrGated, g.base, clean(challenge))
	}
	q := realm.Query()
	for _, name := range []string{"service", "scope"} {
		if params[name] != "" {
			q.Set(name, params[name])
		}
	}
	realm.RawQuery = q.Encode()
	body, err := g.c.fetchBody(ctx, 64<<10, func() (*http.Request, error) {
		return http.NewRequestWithContext(ctx, http.MethodGet, realm.String(), nil)
	}, func(req *http.Request) (*http.Response, error) { return g.c.do(req, nil) })
	if err != nil {
		return err
	}
	var got struct {
		Token       string `json:"token"`
		AccessToken string `json:"access_token"`
	}
	if err := json.Unmarshal(body, &got); err != nil || got.Token+got.AccessToken == "" {
		return fmt.Errorf("%w: %s gave no token", ErrProtocol, realm.Host)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.token = got.Token; g.token == "" {
		g.token = got.AccessToken
	}
	return nil
}

// manifest fetches the manifest of a tag.
func (g *registry) manifest(ctx context.Context, r Ref) ([]byte, error) {
	text, err := g.c.fetchBody(ctx, maxManifest, func() (*http.Request, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, g.base+"/v2/"+r.Repo+"/manifests/"+r.Tag, nil)
		if err == nil {
			req.Header.Set("Accept", manifestTypes)
		}
		return req, err
	}, g.send)
	return text, g.explain(r, err)
}

func (g *registry) explain(r Ref, err error) error {
	var s *statusError
	if !errors.As(err, &s) || errors.Is(err, ErrUnreachable) {
		return err
	}
	switch s.status {
	case http.StatusNotFound:
		return fmt.Errorf("%w: %s has no %s: check the name and the tag", ErrNotFound, g.base, r)
	case http.StatusUnauthorized, http.StatusForbidden:
		return fmt.Errorf("%w: %s has no %s, or it is private; only public models can be pulled from a registry (%w)", ErrGated, g.base, r, s)
	}
	return fmt.Errorf("%w: %w", ErrProtocol, s)
}

// registryDir returns the folder of a model of a registry:
//
//	OWN/registry/HOST/NAMESPACE/NAME/TAG/{reference, manifest.json, template, params.json, NAME:TAG.gguf}
//
// The .gguf file is a symbolic link to OWN/blobs/sha256-..., or to Ollama's blob.
func (s *Store) registryDir(r Ref) string {
	clean := strings.NewReplacer(":", "-", "[", "", "]", "")
	return filepath.Join(s.s.ModelsDir, "registry", clean.Replace(r.Host), filepath.FromSlash(r.Repo), clean.Replace(r.Tag))
}

// referenceFile holds the reference of a model of a registry or a URL, in its folder.
const referenceFile = "reference"

// registryFile returns the name of the .gguf file of a model. It is also the name of the model.
func registryFile(r Ref) string {
	name, colon := filepath.Base(filepath.FromSlash(r.Repo)), ":"
	if runtime.GOOS == "windows" {
		colon = "-"
	}
	if tag, ok := strings.CutPrefix(r.Tag, "sha256:"); ok {
		return name + "@" + tag[:12] + ".gguf"
	}
	return name + colon + r.Tag + ".gguf"
}

func blobFile(digest string) string { return strings.Replace(digest, ":", "-", 1) }

func (s *Store) pullRegistry(ctx context.Context, r Ref, t *tracker) (Model, error) {
	g := newRegistry(s.c, r.Host)
	text, err := g.manifest(ctx, r)
	if err != nil {
		return Model{}, err
	}
	m, err := parseManifest(r, text)
	if err != nil {
		return Model{}, err
	}
	weights, texts, err := m.parts(r)
	if err != nil {
		return Model{}, err
	}
	dir := s.registryDir(r)
	links := map[string]string{registryFile(r): weights.Digest}
	layers := map[string]layer{weights.Digest: weights}
	for name, l := range texts {
		links[name], layers[l.Digest] = l.Digest, l
	}
	var blobs []*blob
	at := map[string]string{} // where the content of a digest is
	for digest, l := range layers {
		own := filepath.Join(s.s.ModelsDir, layout.Blobs, blobFile(digest))
		if there, err := s.inOllama(l, t); err != nil {
			return Model{}, err
		} else if at[digest] = there; there != "" {
			continue
		}
		at[digest] = own
		name := "layer " + digest[:19]
		if digest == weights.Digest {
			name = registryFile(r)
		}
		blobs = append(blobs, &blob{
			name: name, url: g.base + "/v2/" + r.Repo + "/blobs/" + digest, size: l.Size, digest: digestOf(digest),
			path: own, lock: filepath.Join(s.s.ModelsDir, locksDir, blobFile(digest)+".lock"),
			send: func(req *http.Request) (*http.Response, error) {
				resp, err := g.send(req)
				return resp, g.explain(r, err)
			},
		})
	}
	if err := newFetcher(s, t).all(ctx, s.s.ModelsDir, r.String(), blobs, func(int) error { return nil }); err != nil {
		return Model{}, err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return Model{}, onDisk(err)
	}
	for name, digest := range links {
		to, own := at[digest], ""
		if rel, err := filepath.Rel(dir, to); err == nil && strings.HasPrefix(to, s.s.ModelsDir+string(filepath.Separator)) {
			to, own = rel, to
		}
		if err := replaceLink(to, own, filepath.Join(dir, name)); err != nil {
			return Model{}, err
		}
	}
	if err := writeFile(filepath.Join(dir, "manifest.json"), text); err != nil {
		return Model{}, err
	}
	if err := writeFile(filepath.Join(dir, referenceFile), []byte(r.String()+"\n")); err != nil {
		return Model{}, err
	}
	return s.findRegistry(r)
}

// inOllama returns the path of a blob in Ollama's store, when it is there with the right
// content; "": it is not.
func (s *Store) inOllama(l layer, t *tracker) (string, error) {
	at := filepath.Join(s.s.Ollama, layout.Blobs, blobFile(l.Digest))
	st, err := os.Stat(at)
	if err != nil || st.Size() != l.Size {
		return "", nil // no store of Ollama, or another file: the blob is fetched
	}
	t.wait(at, "checking "+at)
	defer t.wait(at, "")
	if err := CheckFile(at, digestOf(l.Digest), nil); err != nil {
		return "", nil // unreadable or damaged: the blob is fetched
	}
	return at, nil
}

// findRegistry finds a model that was pulled, or that Ollama has pulled.
func (s *Store) findRegistry(r Ref) (Model, error) {
	dir := s.registryDir(r)
	text, err := modelfile.Read(filepath.Join(dir, "manifest.json"), maxManifest)
	path := filepath.Join(dir, registryFile(r))
	if err != nil {
		dir = s.s.Ollama
		if text, err = modelfile.Read(filepath.Join(dir, "manifests", r.Host, filepath.FromSlash(r.Repo), r.Tag), maxManifest); err != nil {
			return Model{}, notHere(r)
		}
		path = ""
	}
	m, err := parseManifest(r, text)
	if err != nil {
		return Model{}, err
	}
	weights, _, err := m.parts(r)
	if err != nil {
		return Model{}, err
	}
	if path == "" { // give Ollama's blob a name for the model
		path = filepath.Join(s.registryDir(r), registryFile(r))
		blob := filepath.Join(s.s.Ollama, layout.Blobs, blobFile(weights.Digest))
		if st, err := os.Stat(blob); err != nil || st.Size() != weights.Size {
			return Model{}, notHere(r)
		}
		if old, err := os.Readlink(path); err != nil || old != blob {
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				return Model{}, onDisk(err)
			}
			if err := replaceLink(blob, "", path); err != nil {
				return Model{}, err
			}
		}
	}
	if st, err := os.Stat(path); err != nil || st.Size() != weights.Size {
		return Model{}, notHere(r)
	}
	return Model{Ref: r, Name: layout.NameOf(path), Path: path, Bytes: weights.Size, Files: 1}, nil
}
