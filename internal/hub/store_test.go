package hub

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/shoal-llm/shoal/internal/hub/hubtest"
	"github.com/shoal-llm/shoal/internal/hub/layout"
)

func TestMain(m *testing.M) {
	if child() {
		return
	}
	goleak.VerifyTestMain(m)
}

const chunk = 64 << 10 // of the tests' fetchers

// content is a file of n bytes that do not repeat.
func content(seed uint64, n int) []byte {
	r := rand.New(rand.NewPCG(seed, 1))
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

// weights are the files of a repository whose large ones are LFS files.
func weights(files map[string][]byte) *hubtest.Repo {
	r := &hubtest.Repo{Files: map[string][]byte{"config.json": []byte(`{"model_type":"llama"}`), "tokenizer.json": []byte(`{}`), "README.md": []byte("a model")}, LFS: map[string]bool{}}
	for name, b := range files {
		r.Files[name] = b
		switch filepath.Ext(name) {
		case ".safetensors", ".gguf", ".bin":
			r.LFS[name] = true
		}
	}
	return r
}

func oneFile() *hubtest.Repo {
	return weights(map[string][]byte{"model.safetensors": content(1, 500_000), "original/consolidated.pth": content(2, 10),
		"onnx/model.onnx": content(3, 10), "pytorch_model.bin": content(4, 10)})
}

// at is a store for tests in a new folder.
func at(t *testing.T, h *hubtest.Hub) *Store {
	t.Helper()
	s, err := FromEnv(func(string) string { return "" }, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if h != nil {
		s.Endpoint = h.URL
	}
	return open(t, s)
}

func open(t *testing.T, s Settings) *Store {
	st := Open(s)
	st.c.base, st.chunk = time.Millisecond, chunk
	t.Cleanup(st.Close)
	return st
}

func start(t *testing.T, repos map[string]*hubtest.Repo) *hubtest.Hub {
	t.Helper()
	h := hubtest.Start()
	t.Cleanup(h.Close)
	h.Lock()
	defer h.Unlock()
	h.Repos = repos
	return h
}

func parsed(t *testing.T, text string) Ref {
	t.Helper()
	r, err := Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func pull(t *testing.T, s *Store, text string) (Model, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	return s.Pull(ctx, parsed(t, text), nil)
}

// same compares the files of a pulled model with those of the repository.
func same(t *testing.T, m Model, r *hubtest.Repo, names ...string) {
	t.Helper()
	dir := m.Path
	if isGGUF(dir) {
		dir = filepath.Dir(dir)
	}
	var got []string
	filepath.WalkDir(dir, func(p string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			rel, _ := filepath.Rel(dir, p)
			got = append(got, filepath.ToSlash(rel))
		}
		return nil
	})
	slices.Sort(names)
	if !slices.Equal(got, names) {
		t.Errorf("%s has the files %q, want %q", dir, got, names)
	}
	for _, n := range names {
		b, err := os.ReadFile(filepath.Join(dir, n))
		if err != nil || !bytes.Equal(b, r.Files[n]) {
			t.Errorf("%s: %d bytes, %v; want the %d of the repository", n, len(b), err, len(r.Files[n]))
		}
	}
}

// TestPullModules: the modules of sentence-transformers come along, and no other folder.
func TestPullModules(t *testing.T) {
	repo := oneFile()
	want := []string{"config.json", "tokenizer.json", "model.safetensors", "modules.json",
		"config_sentence_transformers.json", "1_Pooling/config.json", "2_Dense/config.json", "2_Dense/model.safetensors"}
	for _, name := range append(want[3:], "2_Dense/pytorch_model.bin", "onnx/model.safetensors", "onnx/config.json") {
		repo.Files[name] = []byte(name)
	}
	m, err := pull(t, at(t, start(t, map[string]*hubtest.Repo{"org/one": repo})), "org/one")
	if err != nil {
		t.Fatal(err)
	}
	same(t, m, repo, want...)
}

func TestPull(t *testing.T) {
	repo := oneFile()
	repo.Files["additional_chat_templates/tools.jinja"] = []byte("{{ x }}")
	h := start(t, map[string]*hubtest.Repo{"org/one": repo})
	s := at(t, h)
	s.s.Token = "secret"
	if _, err := s.Find(parsed(t, "org/one")); !errors.Is(err, ErrNotCached) || !strings.Contains(err.Error(), "shoal pull org/one") {
		t.Errorf("before the pull: %v", err)
	}
	m, err := pull(t, s, "org/one")
	if err != nil {
		t.Fatal(err)
	}
	same(t, m, repo, "config.json", "tokenizer.json", "model.safetensors", "additional_chat_templates/tools.jinja")
	if m.Name != "org/one" || layout.NameOf(m.Path) != "org/one" {
		t.Errorf("the name is %q, of the path %q", m.Name, layout.NameOf(m.Path))
	}
	if l := h.Leaked(); len(l) > 0 {
		t.Errorf("the token went to the CDN: %q", l)
	}
	cache := repoCache{s.s.Cache, "org/one"}
	if to, err := os.Readlink(filepath.Join(m.Path, "model.safetensors")); err != nil ||
		to != "../../blobs/"+hubtest.SHA256(repo.Files["model.safetensors"]) {
		t.Errorf("the link is %q, %v", to, err)
	}
	if b, err := os.ReadFile(cache.ref("main")); err != nil || string(b) != repo.Commit() {
		t.Errorf("refs/main is %q, %v", b, err)
	}
	n := len(h.Log())
	found, err := s.Find(parsed(t, "org/one"))
	if err != nil || found != m || len(h.Log()) != n {
		t.Errorf("found %+v, %v with %d requests; want %+v and none", found, err, len(h.Log())-n, m)
	}
	if again, err := pull(t, s, "org/one@"+repo.Commit()); err != nil || again.Path != m.Path {
		t.Errorf("pulled again by commit: %+v, %v", again, err)
	}
	if after := h.Log()[n:]; len(after) != 1 {
		t.Errorf("a second pull sent %q; want the listing only", after)
	}
	// A new commit shares blobs that did not change.
	h.Lock()
	repo.Files["config.json"] = []byte(`{"model_type":"qwen3"}`)
	h.Unlock()
	n = len(h.Log())
	if m, err = pull(t, s, "org/one"); err != nil {
		t.Fatal(err)
	}
	same(t, m, repo, "config.json", "tokenizer.json", "model.safetensors", "additional_chat_templates/tools.jinja")
	if after := h.Log()[n:]; len(after) != 2 {
		t.Errorf("the pull of a changed config sent %q; want the listing and one file", after)
	}
}

func TestPullChoosesFiles(t *testing.T) {
	index := func(names ...string) []byte {
		var parts []string
		for i, n := range names {
			parts = append(parts, fmt.Sprintf("%q:%q", fmt.Sprint("t", i), n))
		}
		return []byte(`{"weight_map":{` + strings.Join(parts, ",") + `}}`)
	}
	a, b := content(5, 1000), content(6, 1000)
	shards := map[string][]byte{"model-00001-of-00002.safetensors": a, "model-00002-of-00002.safetensors": b}
	with := func(m map[string][]byte, name string, text []byte) map[string][]byte {
		out := map[string][]byte{name: text}
		for k, v := range m {
			out[k] = v
		}
		return out
	}
	gguf := map[string][]byte{"m-Q4_K_M.gguf": a, "m-UD-Q4_K_M.gguf": a, "m-Q4_K.gguf": b, "mmproj-Q8_0.gguf": b,
		"Q8_0/m-Q8_0-00001-of-00002.gguf": a, "Q8_0/m-Q8_0-00002-of-00002.gguf": b}
	h := start(t, map[string]*hubtest.Repo{
		"org/sharded": weights(with(with(shards, indexFile, index("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")),
			"consolidated.safetensors", a)),
		"org/noindex": weights(shards),
		"org/half": weights(map[string][]byte{indexFile: index("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"),
			"model-00001-of-00002.safetensors": a}),
		"org/halfno":   weights(map[string][]byte{"model-00001-of-00002.safetensors": a}),
		"org/escapes":  weights(map[string][]byte{indexFile: index("../../../etc/passwd")}),
		"org/torch":    weights(map[string][]byte{"pytorch_model.bin": a}),
		"org/onnx":     weights(map[string][]byte{"model.onnx": a}),
		"org/nothing":  weights(nil),
		"org/noconfig": {Files: map[string][]byte{"model.safetensors": a}, LFS: map[string]bool{"model.safetensors": true}},
		"org/gguf":     {Files: gguf, LFS: map[string]bool{"m-Q4_K_M.gguf": true}},
		"org/onegguf":  {Files: map[string][]byte{"m.gguf": a, "README.md": b}, LFS: map[string]bool{"m.gguf": true}},
		"org/halfgguf": {Files: map[string][]byte{"m-00001-of-00002.gguf": a}, LFS: map[string]bool{}},
	})
	s := at(t, h)
	for text, want := range map[string][]string{
		"org/sharded": {"config.json", "tokenizer.json", indexFile, "model-00001-of-00002.safetensors",
			"model-00002-of-00002.safetensors"},
		"org/noindex":             {"config.json", "tokenizer.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"},
		"org/onegguf":             {"m.gguf"},
		"org/gguf@v1:q4_k_m":      {"m-Q4_K_M.gguf"},
		"org/gguf:UD-Q4_K_M":      {"m-UD-Q4_K_M.gguf"},
		"org/gguf:Q8_0":           {"m-Q8_0-00001-of-00002.gguf", "m-Q8_0-00002-of-00002.gguf"},
		"org/onegguf@v1:m.gguf":   {"m.gguf"},
		"hf://org/onegguf/m.gguf": {"m.gguf"},
	} {
		m, err := pull(t, at(t, h), text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		repo := h.Repos[m.Ref.Repo]
		if text == "org/gguf:Q8_0" {
			sub := &hubtest.Repo{Files: map[string][]byte{}}
			for n, b := range repo.Files {
				sub.Files[filepath.Base(n)] = b
			}
			repo = sub
		}
		same(t, m, repo, want...)
	}
	for text, want := range map[string]struct {
		err  error
		text string
	}{
		"org/half":              {ErrIncomplete, "model-00002-of-00002.safetensors"},
		"org/halfno":            {ErrIncomplete, "part 2 of 2"},
		"org/escapes":           {ErrProtocol, "leaves its folder"},
		"org/torch":             {ErrUnsupported, "save_pretrained"},
		"org/onnx":              {ErrUnsupported, "model.onnx"},
		"org/nothing":           {ErrUnsupported, "no weights"},
		"org/noconfig":          {ErrIncomplete, "config.json"},
		"org/gguf":              {ErrAmbiguous, "org/gguf:Q8_0/m-Q8_0-00001-of-00002.gguf (2.0 KiB)"},
		"org/gguf:Q2_K":         {ErrNotFound, "m-Q4_K.gguf"},
		"org/gguf:x.gguf":       {ErrNotFound, "m-Q4_K.gguf"},
		"org/onegguf:../x.gguf": {ErrRef, ""},
		"org/halfgguf":          {ErrIncomplete, "1 of the 2 parts"},
		"org/sharded:Q4_K_M":    {ErrNotFound, "without :Q4_K_M"},
	} {
		r, err := Parse(text)
		if err == nil {
			_, err = s.Pull(t.Context(), r, nil)
		}
		if !errors.Is(err, want.err) || !strings.Contains(err.Error(), want.text) {
			t.Errorf("%s: %v; want %v with %q", text, err, want.err, want.text)
		}
	}
	// A model that was pulled in part is not found.
	if _, err := s.Find(parsed(t, "org/half")); !errors.Is(err, ErrNotCached) {
		t.Errorf("a half model is found: %v", err)
	}
}

func TestPullFromMirror(t *testing.T) {
	repo := oneFile()
	h := start(t, map[string]*hubtest.Repo{"org/new": repo})
	h.NamesOnly = true
	s := at(t, h)
	m, err := pull(t, s, "org/new")
	if err != nil {
		t.Fatal(err)
	}
	same(t, m, repo, "config.json", "tokenizer.json", "model.safetensors")
	if !slices.Contains(h.Log(), "HEAD /org/new/resolve/"+repo.Commit()+"/model.safetensors") {
		t.Errorf("no HEAD among %q", h.Log())
	}
	if to, _ := os.Readlink(filepath.Join(m.Path, "model.safetensors")); filepath.Base(to) != hubtest.SHA256(repo.Files["model.safetensors"]) {
		t.Errorf("the blob is %s", to)
	}
}

// TestPullUnderFaults pulls a file of several chunks through each fault that passes.
func TestPullUnderFaults(t *testing.T) {
	first := func(f hubtest.Fault, requests int) func(*http.Request, int) hubtest.Fault {
		return func(_ *http.Request, n int) hubtest.Fault {
			if n <= requests {
				return f
			}
			return hubtest.Fault{}
		}
	}
	always := func(f hubtest.Fault) func(*http.Request, int) hubtest.Fault { return first(f, 1<<30) }
	for name, set := range map[string]func(h *hubtest.Hub, s *Store){
		"none":              func(*hubtest.Hub, *Store) {},
		"cut in the middle": func(h *hubtest.Hub, s *Store) { h.CDNFault = always(hubtest.Fault{CutAfter: 70_000}) },
		"cut and no ranges": func(h *hubtest.Hub, s *Store) {
			h.CDNFault = first(hubtest.Fault{CutAfter: 70_000, IgnoreRange: true}, 3)
		},
		"range ignored":  func(h *hubtest.Hub, s *Store) { h.CDNFault = always(hubtest.Fault{IgnoreRange: true}) },
		"flipped byte":   func(h *hubtest.Hub, s *Store) { h.CDNFault = first(hubtest.Fault{Flip: 300_000}, 8) },
		"503":            func(h *hubtest.Hub, s *Store) { h.CDNFault = first(hubtest.Fault{Status: 503}, 5) },
		"429 of the hub": func(h *hubtest.Hub, s *Store) { h.Fault = first(hubtest.Fault{Status: 429, RetryAfter: "0"}, 3) },
		"500 of the hub": func(h *hubtest.Hub, s *Store) { h.Fault = first(hubtest.Fault{Status: 500}, 4) },
		"stalled": func(h *hubtest.Hub, s *Store) {
			h.CDNFault = first(hubtest.Fault{StallAfter: 10_000}, 2)
			s.c.stall = 100 * time.Millisecond
		},
		"slow":                func(h *hubtest.Hub, s *Store) { h.CDNFault = always(hubtest.Fault{Rate: 4 << 20}) },
		"expiring signatures": func(h *hubtest.Hub, s *Store) { h.Signatures = 2 },
		"renamed": func(h *hubtest.Hub, s *Store) {
			h.Renamed["org/one"] = "org/moved"
			h.Repos["org/moved"] = h.Repos["org/one"]
		},
		"an old wrong part": func(h *hubtest.Hub, s *Store) { part(t, s, h, content(9, 200_000)) },
		"an old right part": func(h *hubtest.Hub, s *Store) { part(t, s, h, h.Repos["org/one"].Files["model.safetensors"][:200_000]) },
		"too long a part":   func(h *hubtest.Hub, s *Store) { part(t, s, h, content(9, 600_000)) },
		"a whole part":      func(h *hubtest.Hub, s *Store) { part(t, s, h, h.Repos["org/one"].Files["model.safetensors"]) },
		"a link to nothing": func(h *hubtest.Hub, s *Store) {
			os.MkdirAll(repoCache{s.s.Cache, "org/one"}.snapshot(h.Repos["org/one"].Commit()), 0o755)
			os.Symlink("../../blobs/none", filepath.Join(repoCache{s.s.Cache, "org/one"}.snapshot(h.Repos["org/one"].Commit()), "config.json"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			repo := oneFile()
			h := start(t, map[string]*hubtest.Repo{"org/one": repo})
			s := at(t, h)
			s.s.Token = "secret"
			set(h, s)
			seen := observed(s)
			var last Progress
			m, err := s.Pull(t.Context(), parsed(t, "org/one"), func(p Progress) { last = p })
			if err != nil {
				t.Fatal(err)
			}
			same(t, m, repo, "config.json", "tokenizer.json", "model.safetensors")
			for _, name := range []string{"config.json", "tokenizer.json", "model.safetensors"} {
				if !slices.ContainsFunc(seen(), func(got []byte) bool { return bytes.Equal(got, repo.Files[name]) }) {
					t.Errorf("no observer got every byte of %s", name)
				}
			}
			if last.Done != last.Total || last.Files != 3 || last.Of != 3 || last.Total != m.Bytes {
				t.Errorf("the last progress is %+v of %d bytes", last, m.Bytes)
			}
			if l := h.Leaked(); len(l) > 0 {
				t.Errorf("the token went to the CDN: %q", l)
			}
			if left, _ := filepath.Glob(filepath.Join(repoCache{s.s.Cache, "org/one"}.dir(), layout.Blobs, "*"+incomplete)); len(left) > 0 {
				t.Errorf("left over: %q", left)
			}
			if n := requests(h, "CDN"); name == "range ignored" && n > window+1 {
				t.Errorf("%d requests to a server that ignores ranges", n)
			}
			if name == "an old right part" && !slices.ContainsFunc(h.Log(), func(l string) bool { return strings.Contains(l, "bytes=200000-") }) {
				t.Errorf("the part was fetched again: %q", h.Log())
			}
		})
	}
}

// observer collects a file.
type observer struct {
	bytes.Buffer
	complete func([]byte)
}

func (o *observer) Complete(_ context.Context, path string) {
	if b, err := os.ReadFile(path); err == nil && bytes.Equal(b, o.Bytes()) {
		o.complete(b)
	}
}

// observed observes the files of a store. It returns the files whose bytes an observer received completely.
func observed(s *Store) (files func() [][]byte) {
	var mu sync.Mutex
	var all [][]byte
	s.Observe = func(int64) Observer {
		return &observer{complete: func(b []byte) {
			mu.Lock()
			defer mu.Unlock()
			all = append(all, b)
		}}
	}
	return func() [][]byte {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(all)
	}
}

// requests counts those that begin with a word.
func requests(h *hubtest.Hub, word string) (n int) {
	for _, l := range h.Log() {
		if strings.HasPrefix(l, word) {
			n++
		}
	}
	return n
}

// part puts an unfinished download into the cache.
func part(t *testing.T, s *Store, h *hubtest.Hub, b []byte) {
	t.Helper()
	at := repoCache{s.s.Cache, "org/one"}.blob(hubtest.SHA256(h.Repos["org/one"].Files["model.safetensors"])) + incomplete
	if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, b, 0o644)); err != nil {
		t.Fatal(err)
	}
}

// TestPullRefuses lists the reasons that end a pull, and the advice in each error.
func TestPullRefuses(t *testing.T) {
	always := func(f hubtest.Fault) func(*http.Request, int) hubtest.Fault {
		return func(*http.Request, int) hubtest.Fault { return f }
	}
	listing := func(text string) func(string) ([]byte, bool) {
		return func(string) ([]byte, bool) { return []byte(text), true }
	}
	sha := strings.Repeat("a", 40)
	for name, c := range map[string]struct {
		text string
		set  func(h *hubtest.Hub, s *Store)
		err  error
		want string
	}{
		"no such repository": {"org/once", nil, ErrNotFound, "has no repository org/once, a private one needs HF_TOKEN"},
		"similar names":      {"another/one", nil, ErrNotFound, "\n  org/one"},
		"a bad token":        {"org/private", func(_ *hubtest.Hub, s *Store) { s.s.Token = "x" }, ErrNotFound, "token of HF_TOKEN is invalid"},
		"no such revision":   {"org/one@v9", nil, ErrNotFound, "no revision v9; it has\n  main\n  v1"},
		"gated, no token":    {"org/gated", nil, ErrGated, "/org/gated, accept it, and set HF_TOKEN"},
		"gated, other token": {"org/gated", func(_ *hubtest.Hub, s *Store) { s.s.Token = "x" }, ErrGated, "has not accepted the licence"},
		"forbidden": {"org/one", func(h *hubtest.Hub, _ *Store) { h.Fault = always(hubtest.Fault{Status: 403}) },
			ErrGated, "check HF_TOKEN"},
		"offline":            {"org/one", func(_ *hubtest.Hub, s *Store) { s.s.Offline = true }, ErrOffline, "HF_HUB_OFFLINE"},
		"a hub that is down": {"org/one", func(h *hubtest.Hub, s *Store) { s.s.Endpoint = "http://127.0.0.1:1" }, ErrUnreachable, "127.0.0.1:1"},
		"always 503":         {"org/one", func(h *hubtest.Hub, _ *Store) { h.Fault = always(hubtest.Fault{Status: 503}) }, ErrUnreachable, "503"},
		"a long pause": {"org/one",
			func(h *hubtest.Hub, _ *Store) { h.Fault = always(hubtest.Fault{Status: 429, RetryAfter: "3000"}) }, ErrUnreachable, "50m0s"},
		"never answers": {"org/one", func(h *hubtest.Hub, s *Store) {
			h.Fault = always(hubtest.Fault{Delay: 300 * time.Millisecond})
			s.c.http.Transport.(*http.Transport).ResponseHeaderTimeout = 20 * time.Millisecond
		}, ErrUnreachable, "timeout"},
		"always stalls": {"org/one", func(h *hubtest.Hub, s *Store) {
			h.CDNFault = always(hubtest.Fault{StallAfter: 1})
			s.c.stall = 20 * time.Millisecond
		}, ErrUnreachable, "stands still"},
		"always wrong bytes": {"org/one", func(h *hubtest.Hub, _ *Store) { h.CDNFault = always(hubtest.Fault{Flip: 300_000}) },
			ErrDamaged, "another SHA-256"},
		"no hub at all": {"org/one", func(h *hubtest.Hub, _ *Store) { h.Listing = listing("<html>") }, ErrProtocol, "is not a hub"},
		"no commit":     {"org/one", func(h *hubtest.Hub, _ *Store) { h.Listing = listing(`{"sha":"../../x"}`) }, ErrProtocol, "no commit"},
		"a hostile name": {"org/one", func(h *hubtest.Hub, _ *Store) {
			h.Listing = listing(`{"sha":"` + sha + `","siblings":[{"rfilename":"../../x.safetensors"}]}`)
		}, ErrProtocol, "leaves its folder"},
		"an absolute name": {"org/one", func(h *hubtest.Hub, _ *Store) {
			h.Listing = listing(`{"sha":"` + sha + `","siblings":[{"rfilename":"/etc/passwd"}]}`)
		}, ErrProtocol, "leaves its folder"},
		"a NUL in a name": {"org/one", func(h *hubtest.Hub, _ *Store) {
			h.Listing = listing(`{"sha":"` + sha + `","siblings":[{"rfilename":"a\u0000b"}]}`)
		}, ErrProtocol, "control character"},
		"a long name": {"org/one", func(h *hubtest.Hub, _ *Store) {
			h.Listing = listing(`{"sha":"` + sha + `","siblings":[{"rfilename":"` + strings.Repeat("n", 300) + `"}]}`)
		}, ErrProtocol, "at most 255"},
		"a file twice": {"org/one", func(h *hubtest.Hub, _ *Store) {
			h.Listing = listing(`{"sha":"` + sha + `","siblings":[{"rfilename":"a"},{"rfilename":"a"}]}`)
		}, ErrProtocol, "twice"},
		"a hostile size": {"org/one", func(h *hubtest.Hub, _ *Store) {
			h.Listing = listing(`{"sha":"` + sha + `","siblings":[{"rfilename":"config.json","size":9000000000000000000,"blobId":"` + sha + `"},{"rfilename":"model.safetensors","size":1,"blobId":"` + sha + `"}]}`)
		}, ErrProtocol, "at most"},
		"too large": {"org/one", func(h *hubtest.Hub, _ *Store) {
			h.Listing = listing(`{"sha":"` + sha + `","siblings":[{"rfilename":"config.json","size":1,"blobId":"` + sha + `"},{"rfilename":"model.safetensors","size":4000000000000,"blobId":"` + sha + `"}]}`)
		}, ErrSpace, "3725.29 GiB more"},
		"another size": {"org/one", func(h *hubtest.Hub, _ *Store) {
			c := h.Repos["org/one"].Commit()
			h.Listing = listing(`{"sha":"` + c + `","siblings":[{"rfilename":"config.json","size":1,"blobId":"` + sha + `"},{"rfilename":"model.safetensors","size":1000,"blobId":"` + sha + `"}]}`)
		}, ErrProtocol, "were announced"},
		"a listing that lags": {"org/one", func(h *hubtest.Hub, _ *Store) {
			delete(h.Repos["org/one"].Files, "tokenizer.json")
			c := h.Repos["org/one"].Commit()
			h.Listing = listing(`{"sha":"` + c + `","siblings":[{"rfilename":"config.json"},{"rfilename":"tokenizer.json"},{"rfilename":"model.safetensors"}]}`)
		}, ErrNotFound, "no file tokenizer.json"},
		"an endless listing": {"org/one", func(h *hubtest.Hub, _ *Store) { h.Listing = listing(`["` + strings.Repeat("x", maxListing) + `"]`) }, ErrProtocol, "more bytes than the limit"},
		"a folder":           {"/srv/x", nil, ErrRef, "nothing to pull"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := start(t, map[string]*hubtest.Repo{"org/one": oneFile(),
				"org/gated": {Files: oneFile().Files, LFS: map[string]bool{"model.safetensors": true}, Gated: true}})
			h.Token = "good"
			s := at(t, h)
			if c.set != nil {
				c.set(h, s)
			}
			_, err := pull(t, s, c.text)
			if err == nil || c.err != nil && !errors.Is(err, c.err) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v; want %v with %q", err, c.err, c.want)
			}
			if _, err := os.Stat(filepath.Join(s.s.Cache, "..", "x.safetensors")); err == nil {
				t.Error("a file was written outside of the cache")
			}
		})
	}
}

func TestGatedWithToken(t *testing.T) {
	repo := oneFile()
	repo.Gated = true
	h := start(t, map[string]*hubtest.Repo{"org/gated": repo})
	h.Token = "good"
	s := at(t, h)
	s.s.Token = "good"
	m, err := pull(t, s, "org/gated")
	if err != nil {
		t.Fatal(err)
	}
	same(t, m, repo, "config.json", "tokenizer.json", "model.safetensors")
	if l := h.Leaked(); len(l) > 0 {
		t.Errorf("the token went to the CDN: %q", l)
	}
}

// TestPullsShareOneDownload: several stores ask for one model; each byte crosses the wire
// once, and waiting stores report it.
func TestPullsShareOneDownload(t *testing.T) {
	repo := oneFile()
	h := start(t, map[string]*hubtest.Repo{"org/one": repo})
	h.CDNFault = func(*http.Request, int) hubtest.Fault { return hubtest.Fault{Rate: 1 << 20} }
	first := at(t, h)
	type result struct {
		m      Model
		err    error
		waited bool
	}
	results := make(chan result)
	for range 3 {
		s := open(t, first.s)
		go func() {
			var waited bool
			m, err := s.Pull(t.Context(), parsed(t, "org/one"),
				func(p Progress) { waited = waited || strings.Contains(p.Waiting, "another process") })
			results <- result{m, err, waited}
		}()
	}
	waited := 0
	for range 3 {
		r := <-results
		if r.err != nil {
			t.Fatal(r.err)
		}
		same(t, r.m, repo, "config.json", "tokenizer.json", "model.safetensors")
		if r.waited {
			waited++
		}
	}
	if waited == 0 {
		t.Error("the wait was not reported")
	}
	ranges := map[string]int{}
	for _, l := range h.Log() {
		if strings.HasPrefix(l, "CDN") {
			ranges[l]++
		}
	}
	for l, n := range ranges {
		if n > 1 {
			t.Errorf("%d times %s", n, l)
		}
	}
}

func TestOnDisk(t *testing.T) {
	for err, want := range map[error]error{
		&os.PathError{Op: "mkdir", Path: "/x", Err: syscall.EACCES}: ErrPermission,
		&os.PathError{Op: "mkdir", Path: "/x", Err: syscall.EROFS}:  ErrPermission,
		&os.PathError{Op: "write", Path: "/x", Err: syscall.ENOSPC}: ErrSpace,
	} {
		if got := onDisk(err); !errors.Is(got, want) || !strings.Contains(got.Error(), "HF_HUB_CACHE") || !strings.Contains(got.Error(), "/x") {
			t.Errorf("%v becomes %v", err, got)
		}
	}
}

func TestSpaceError(t *testing.T) {
	free := func(string) (int64, bool) { return 1 << 30, true }
	dir := filepath.Join(t.TempDir(), "not", "there")
	if err := spaceError(dir, 1<<30, "m", free); err != nil {
		t.Error(err)
	}
	err := spaceError(dir, 3<<30, "m", free)
	if !errors.Is(err, ErrSpace) || !strings.Contains(err.Error(), "needs 3.00 GiB more") || !strings.Contains(err.Error(), "free 2.00 GiB") {
		t.Error(err)
	}
	if n, ok := freeSpace(t.TempDir()); !ok || n <= 0 {
		t.Errorf("%d bytes are free, %v", n, ok)
	}
}
