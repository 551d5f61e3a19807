package hubtest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
)

// Layer is a layer of a model in a registry.
type Layer struct {
	Type    string // its media type
	Content []byte
}

// OllamaModel is the media type of a GGUF file in Ollama's registry.
const OllamaModel = "application/vnd.ollama.image.model"

// Registry is an OCI registry that requires a token, gives one to every client, and keeps its blobs
// on another port.
type Registry struct {
	sync.Mutex
	Host     string             // 127.0.0.1:port
	Models   map[string][]Layer // by namespace/name:tag
	Manifest func(model string) ([]byte, bool)
	Realm    string // "": its own
	CDNFault func(r *http.Request, n int) Fault

	requests int
	log      []string
	leaked   []string
	main     *httptest.Server
	cdn      *httptest.Server
	stop     chan struct{}
}

// StartRegistry runs a registry until Close.
func StartRegistry() *Registry {
	g := &Registry{Models: map[string][]Layer{}, stop: make(chan struct{})}
	g.main, g.cdn = httptest.NewServer(http.HandlerFunc(g.serve)), httptest.NewServer(http.HandlerFunc(g.serveCDN))
	g.Host = strings.TrimPrefix(g.main.URL, "http://")
	return g
}

func (g *Registry) Close() {
	close(g.stop)
	for _, s := range []*httptest.Server{g.main, g.cdn} {
		s.CloseClientConnections()
		s.Close()
	}
}

func (g *Registry) Log() []string {
	g.Lock()
	defer g.Unlock()
	return slices.Clone(g.log)
}

// Leaked lists requests to the CDN that carried a token.
func (g *Registry) Leaked() []string {
	g.Lock()
	defer g.Unlock()
	return slices.Clone(g.leaked)
}

// ManifestOf returns the manifest of layers.
func ManifestOf(layers []Layer) []byte {
	var list []map[string]any
	for _, l := range layers {
		list = append(list, map[string]any{"mediaType": l.Type, "digest": "sha256:" + SHA256(l.Content), "size": len(l.Content)})
	}
	text, err := json.Marshal(map[string]any{
		"schemaVersion": 2, "mediaType": "application/vnd.docker.distribution.manifest.v2+json",
		"config": map[string]any{"mediaType": "application/vnd.docker.container.image.v1+json", "digest": "sha256:" + SHA256(nil), "size": 0},
		"layers": list,
	})
	if err != nil {
		panic(err)
	}
	return text
}

func (g *Registry) serve(w http.ResponseWriter, r *http.Request) {
	g.Lock()
	defer g.Unlock()
	g.log = append(g.log, r.Method+" "+r.URL.Path)
	if r.URL.Path == "/token" {
		fmt.Fprintf(w, `{"token":"for %s"}`, r.URL.Query().Get("scope"))
		return
	}
	rest := strings.TrimPrefix(r.URL.Path, "/v2/")
	name, what, ok := strings.Cut(rest, "/manifests/")
	manifests := ok
	if !ok {
		if name, what, ok = strings.Cut(rest, "/blobs/"); !ok {
			w.WriteHeader(http.StatusNotFound)
			return
		}
	}
	scope := "repository:" + name + ":pull"
	if r.Header.Get("Authorization") != "Bearer for "+scope {
		realm := g.Realm
		if realm == "" {
			realm = g.main.URL + "/token"
		}
		w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm=%q,service="test",scope=%q`, realm, scope))
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	if manifests {
		model := name + ":" + what
		text, known := []byte(nil), false
		if g.Manifest != nil {
			text, known = g.Manifest(model)
		}
		if layers, ok := g.Models[model]; !known && ok {
			text, known = ManifestOf(layers), true
		}
		if !known {
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprint(w, `{"errors":[{"code":"MANIFEST_UNKNOWN","message":"manifest unknown"}]}`)
			return
		}
		w.Header().Set("Content-Type", "application/vnd.docker.distribution.manifest.v2+json")
		w.Header().Set("Docker-Content-Digest", "sha256:"+SHA256(text))
		_, _ = w.Write(text)
		return
	}
	w.Header().Set("Location", g.cdn.URL+"/"+what)
	w.WriteHeader(http.StatusTemporaryRedirect)
}

func (g *Registry) serveCDN(w http.ResponseWriter, r *http.Request) {
	g.Lock()
	g.requests++
	g.log = append(g.log, "CDN "+r.Method+" "+r.Header.Get("Range"))
	if r.Header.Get("Authorization") != "" {
		g.leaked = append(g.leaked, r.URL.String())
	}
	digest := strings.TrimPrefix(r.URL.Path, "/")
	var content []byte
	found := false
	for _, layers := range g.Models {
		for _, l := range layers {
			if "sha256:"+SHA256(l.Content) == digest {
				content, found = l.Content, true
			}
		}
	}
	var fault Fault
	if g.CDNFault != nil {
		fault = g.CDNFault(r, g.requests)
	}
	g.Unlock()
	if !found && fault.Status == 0 {
		fault.Status = http.StatusNotFound
	}
	fault.serve(w, r, content, `"`+digest+`"`, g.stop)
}
