package hub

import (
	"bytes"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/hub/hubtest"
	"github.com/shoal-llm/shoal/internal/hub/layout"
)

func startRegistry(t *testing.T) *hubtest.Registry {
	g := hubtest.StartRegistry()
	t.Cleanup(g.Close)
	return g
}

func layersOf(b []byte) []hubtest.Layer {
	return []hubtest.Layer{
		{Type: hubtest.OllamaModel, Content: b},
		{Type: "application/vnd.ollama.image.template", Content: []byte("{{ .Prompt }}")},
		{Type: "application/vnd.ollama.image.params", Content: []byte(`{"stop":["x"]}`)},
		{Type: "application/vnd.ollama.image.projector", Content: []byte("pictures")},
	}
}

func TestPullFromRegistry(t *testing.T) {
	g := startRegistry(t)
	b := content(1, 400_000)
	g.Models["library/tiny:0.1b"], g.Models["Some/Tiny:latest"] = layersOf(b), layersOf(b)
	g.CDNFault = func(_ *http.Request, n int) hubtest.Fault {
		if n == 2 {
			return hubtest.Fault{CutAfter: 30_000}
		}
		return hubtest.Fault{}
	}
	s := at(t, nil)
	m, err := pull(t, s, "ollama://"+g.Host+"/tiny:0.1b")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(m.Path); err != nil || !bytes.Equal(got, b) {
		t.Errorf("%s has %d bytes, %v", m.Path, len(got), err)
	}
	if m.Name != "tiny:0.1b" || layout.NameOf(m.Path) != m.Name || m.Bytes != int64(len(b)) {
		t.Errorf("the model is %+v", m)
	}
	for name, want := range map[string]string{"template": "{{ .Prompt }}", "params.json": `{"stop":["x"]}`} {
		if got, err := os.ReadFile(filepath.Join(filepath.Dir(m.Path), name)); err != nil || string(got) != want {
			t.Errorf("%s is %q, %v", name, got, err)
		}
	}
	if l := g.Leaked(); len(l) > 0 {
		t.Errorf("the token went to the CDN: %q", l)
	}
	if found, err := s.Find(m.Ref); err != nil || found != m {
		t.Errorf("found %+v, %v", found, err)
	}
	// The same content under another name needs its manifest only.
	n := len(g.Log())
	if _, err := pull(t, s, g.Host+"/Some/Tiny"); err != nil {
		t.Fatal(err)
	}
	if more := g.Log()[n:]; slices.ContainsFunc(more, func(l string) bool { return strings.HasPrefix(l, "CDN") }) {
		t.Errorf("fetched again: %q", more)
	}
}

func TestRegistryRefuses(t *testing.T) {
	b := content(1, 100)
	sum := "sha256:" + hubtest.SHA256(b)
	manifest := func(text string) func(*hubtest.Registry) {
		return func(g *hubtest.Registry) {
			g.Manifest = func(string) ([]byte, bool) { return []byte(text), true }
		}
	}
	for name, c := range map[string]struct {
		set  func(*hubtest.Registry)
		err  error
		want string
	}{
		"missing":           {nil, ErrNotFound, "check the name and the tag"},
		"no GGUF":           {manifest(`{"layers":[{"mediaType":"application/vnd.ollama.image.license","digest":"` + sum + `","size":1}]}`), ErrUnsupported, "no GGUF layer"},
		"an adapter":        {manifest(`{"layers":[{"mediaType":"application/vnd.ollama.image.adapter","digest":"` + sum + `","size":1}]}`), ErrUnsupported, "adapter"},
		"two models":        {manifest(`{"layers":[{"mediaType":"` + hubtest.OllamaModel + `","digest":"` + sum + `","size":1},{"mediaType":"` + hubtest.OllamaModel + `","digest":"` + sum + `","size":1}]}`), ErrUnsupported, "several files"},
		"a hostile digest":  {manifest(`{"layers":[{"mediaType":"` + hubtest.OllamaModel + `","digest":"sha256:../../../../etc/passwd","size":1}]}`), ErrProtocol, "digest"},
		"a negative size":   {manifest(`{"layers":[{"mediaType":"` + hubtest.OllamaModel + `","digest":"` + sum + `","size":-1}]}`), ErrProtocol, "-1 bytes"},
		"an index":          {manifest(`{"manifests":[{}]}`), ErrUnsupported, "several platforms"},
		"no manifest":       {manifest(`<html>`), ErrProtocol, "manifest of"},
		"a realm elsewhere": {func(g *hubtest.Registry) { g.Realm = "http://10.0.0.1/token" }, ErrGated, "only public models"},
		"wrong bytes": {func(g *hubtest.Registry) {
			g.Models["library/m:latest"] = layersOf(b)
			g.CDNFault = func(*http.Request, int) hubtest.Fault { return hubtest.Fault{Flip: 5} }
		}, ErrDamaged, "SHA-256"},
		"a blob that is gone": {func(g *hubtest.Registry) {
			g.Models["library/m:latest"] = layersOf(b)
			g.CDNFault = func(*http.Request, int) hubtest.Fault { return hubtest.Fault{Status: 404} }
		}, ErrNotFound, "has no"},
	} {
		t.Run(name, func(t *testing.T) {
			g := startRegistry(t)
			if c.set != nil {
				c.set(g)
			}
			_, err := pull(t, at(t, nil), "ollama://"+g.Host+"/m")
			if !errors.Is(err, c.err) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v; want %v with %q", err, c.err, c.want)
			}
		})
	}
}

// TestOllamaStore: models that Ollama has downloaded are used in place, and without a network.
func TestOllamaStore(t *testing.T) {
	g := startRegistry(t)
	b := content(1, 100_000)
	g.Models["library/m:latest"] = layersOf(b)
	s := at(t, nil)
	put := func(name string, content []byte) string {
		at := filepath.Join(s.s.Ollama, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, content, 0o644)); err != nil {
			t.Fatal(err)
		}
		return at
	}
	blob := put("blobs/sha256-"+hubtest.SHA256(b), b)
	m, err := pull(t, s, "ollama://"+g.Host+"/m")
	if err != nil {
		t.Fatal(err)
	}
	if real, err := filepath.EvalSymlinks(m.Path); err != nil || real != blob {
		t.Errorf("the model is %s, %v; want Ollama's blob", real, err)
	}
	ref := parsed(t, "ollama://other.example/team/m:v1")
	if _, err := s.Find(ref); !errors.Is(err, ErrNotCached) {
		t.Errorf("before: %v", err)
	}
	put("manifests/other.example/team/m/v1", hubtest.ManifestOf(layersOf(b)))
	if m, err = s.Find(ref); err != nil || m.Name != "m:v1" {
		t.Fatalf("%+v, %v", m, err)
	}
	if got, err := os.ReadFile(m.Path); err != nil || !bytes.Equal(got, b) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	// A damaged blob is not used.
	put("blobs/sha256-"+hubtest.SHA256(b), content(2, len(b)))
	fresh := s.s
	fresh.ModelsDir = t.TempDir()
	if m, err = pull(t, open(t, fresh), "ollama://"+g.Host+"/m"); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(m.Path); err != nil || !bytes.Equal(got, b) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}
