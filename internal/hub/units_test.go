package hub

import (
	"crypto/x509"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/internal/hub/hubtest"
)

func TestFromEnv(t *testing.T) {
	home := t.TempDir()
	os.MkdirAll(filepath.Join(home, ".cache/huggingface"), 0o755)
	os.WriteFile(filepath.Join(home, ".cache/huggingface/token"), []byte("hf_file\n"), 0o600)
	os.WriteFile(filepath.Join(home, "mine"), []byte("hf_mine"), 0o600)
	env := func(pairs ...string) func(string) string {
		return func(name string) string {
			for i := 0; i < len(pairs); i += 2 {
				if pairs[i] == name {
					return pairs[i+1]
				}
			}
			return ""
		}
	}
	in := func(p string) string { return filepath.Join(home, p) }
	for name, c := range map[string]struct {
		env   []string
		field func(Settings) any
		want  any
	}{
		"endpoint": {nil, func(s Settings) any { return s.Endpoint }, "https://huggingface.co"},
		"a mirror": {[]string{"HF_ENDPOINT", "https://hub.example/"}, func(s Settings) any { return s.Endpoint }, "https://hub.example"},
		"cache":    {nil, func(s Settings) any { return s.Cache }, in(".cache/huggingface/hub")},
		"XDG": {[]string{"XDG_CACHE_HOME", "/x"}, func(s Settings) any { return s.Cache + " " + s.ModelsDir },
			"/x/huggingface/hub /x/shoal/models"},
		"HF_HOME":          {[]string{"XDG_CACHE_HOME", "/x", "HF_HOME", "~/hf"}, func(s Settings) any { return s.Cache }, in("hf/hub")},
		"HF_HUB_CACHE":     {[]string{"HF_HOME", "/hf", "HF_HUB_CACHE", "/c"}, func(s Settings) any { return s.Cache }, "/c"},
		"old name":         {[]string{"HF_HOME", "/hf", "HUGGINGFACE_HUB_CACHE", "/c"}, func(s Settings) any { return s.Cache }, "/c"},
		"token file":       {nil, func(s Settings) any { return s.Token }, "hf_file"},
		"HF_TOKEN":         {[]string{"HF_TOKEN", "hf_env"}, func(s Settings) any { return s.Token }, "hf_env"},
		"HF_TOKEN_PATH":    {[]string{"HF_TOKEN_PATH", "~/mine"}, func(s Settings) any { return s.Token }, "hf_mine"},
		"no implicit one":  {[]string{"HF_HUB_DISABLE_IMPLICIT_TOKEN", "1"}, func(s Settings) any { return s.Token }, ""},
		"offline":          {[]string{"HF_HUB_OFFLINE", "yes"}, func(s Settings) any { return s.Offline }, true},
		"not offline":      {[]string{"HF_HUB_OFFLINE", "0"}, func(s Settings) any { return s.Offline }, false},
		"transformers":     {[]string{"TRANSFORMERS_OFFLINE", "1"}, func(s Settings) any { return s.Offline }, true},
		"ollama":           {nil, func(s Settings) any { return s.Ollama }, in(".ollama/models")},
		"OLLAMA_MODELS":    {[]string{"OLLAMA_MODELS", "/o"}, func(s Settings) any { return s.Ollama }, "/o"},
		"SHOAL_MODELS":     {[]string{"SHOAL_MODELS", "/s"}, func(s Settings) any { return s.ModelsDir }, "/s"},
		"download timeout": {[]string{"HF_HUB_DOWNLOAD_TIMEOUT", "7"}, func(s Settings) any { return s.StallTimeout }, 7 * time.Second},
	} {
		s, err := FromEnv(env(c.env...), home)
		if got := c.field(s); err != nil || got != c.want {
			t.Errorf("%s: %v, %v; want %v", name, got, err, c.want)
		}
	}
	for _, bad := range [][]string{{"HF_ENDPOINT", "hub.example"}, {"HF_ENDPOINT", "ftp://x"},
		{"HF_ENDPOINT", "https://u:p@x"}, {"HF_HUB_ETAG_TIMEOUT", "soon"}, {"HF_TOKEN", "a b"}, {"HF_TOKEN", "a\nb"}} {
		if _, err := FromEnv(env(bad...), home); err == nil || !strings.Contains(err.Error(), bad[0]) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestMeter(t *testing.T) {
	var m meter
	at := time.Unix(100, 0)
	if r := m.add(at, 0); r != 0 {
		t.Errorf("the first rate is %f", r)
	}
	for i := 1; i <= 20; i++ {
		m.add(at.Add(time.Duration(i)*time.Second), int64(i)*1000)
	}
	if r := m.add(at.Add(21*time.Second), 21_000); r != 1000 {
		t.Errorf("a steady rate is %f", r)
	}
	for i := 22; i <= 40; i++ { // ten times as fast: old samples leave the window
		m.add(at.Add(time.Duration(i)*time.Second), 21_000+int64(i-21)*10_000)
	}
	if r := m.add(at.Add(41*time.Second), 221_000); r != 10_000 {
		t.Errorf("a new rate is %f", r)
	}
	if d := timeLeft(50_000, 10_000); d != 5*time.Second {
		t.Errorf("%s are left", d)
	}
	if timeLeft(1, 0) != 0 || timeLeft(0, 1) != 0 || timeLeft(1<<60, 1) != 0 {
		t.Error("an unknown time is not 0")
	}
}

func TestRetryAfter(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for v, want := range map[string]time.Duration{"": 0, "7": 7 * time.Second, "-1": 0, "x": 0,
		now.Add(time.Minute).Format(http.TimeFormat): time.Minute, now.Add(-time.Minute).Format(http.TimeFormat): 0} {
		if got := retryAfter(http.Header{"Retry-After": {v}}, now); got != want {
			t.Errorf("%q: %s, want %s", v, got, want)
		}
	}
	for n := 1; n < 100; n++ {
		if p := pause(time.Second, n, 0); p <= 0 || p > maxPause {
			t.Errorf("pause %d is %s", n, p)
		}
	}
	if p := pause(time.Second, 1, time.Minute); p != time.Minute {
		t.Errorf("a pause that was asked for is %s", p)
	}
}

func TestContentRange(t *testing.T) {
	for v, want := range map[string][3]int64{"bytes 0-9/100": {0, 100, 1}, "bytes 5-9/*": {5, -1, 1},
		"": {}, "bytes x-1/2": {}, "items 0-1/2": {}, "bytes 0-1": {}, "bytes 0-1/x": {}, "bytes -1-2/3": {}} {
		first, total, ok := contentRange(v)
		if ok != (want[2] == 1) || ok && (first != want[0] || total != want[1]) {
			t.Errorf("%q: %d of %d, %v", v, first, total, ok)
		}
	}
}

func TestCertificates(t *testing.T) {
	web := httptest.NewUnstartedServer(http.NotFoundHandler())
	web.Config.ErrorLog = log.New(io.Discard, "", 0)
	web.StartTLS()
	t.Cleanup(web.Close)
	s := at(t, nil)
	s.s.Endpoint = web.URL
	_, err := pull(t, s, "org/one")
	if !errors.Is(err, ErrUnreachable) || !strings.Contains(err.Error(), "SSL_CERT_FILE") {
		t.Errorf("%v", err)
	}
	none := errors.Join(x509.UnknownAuthorityError{})
	if got := s.c.networkError(httptest.NewRequest(http.MethodGet, web.URL, nil),
		none); noRoots() != strings.Contains(got.Error(), "no CA certificates") {
		t.Errorf("%v where the machine has roots: %v", got, !noRoots())
	}
}

func TestClean(t *testing.T) {
	for in, want := range map[string]string{"a\x1b[31m\nb": "a [31m b", "<html>": "", "\xff": "?",
		strings.Repeat("x", 400): strings.Repeat("x", 300) + "..."} {
		if got := clean(in); got != want {
			t.Errorf("clean(%q) = %q", in, got)
		}
	}
}

// TestRedirects: a token is for one origin, and a port is part of it.
func TestRedirects(t *testing.T) {
	for _, c := range []struct {
		from, to string
		keeps    bool
		fails    bool
	}{
		{"https://hub.example/a", "https://hub.example/b", true, false},
		{"https://hub.example/a", "https://cdn.hub.example/b", false, false},
		{"https://hub.example/a", "https://hub.example:444/b", false, false},
		{"https://hub.example/a", "http://hub.example/b", false, true},
		{"http://127.0.0.1:1/a", "http://127.0.0.1:2/b", false, false},
		{"http://hub.example/a", "ftp://hub.example/b", false, true},
	} {
		via, _ := http.NewRequest(http.MethodGet, c.from, nil)
		req, _ := http.NewRequest(http.MethodGet, c.to, nil)
		req.Header.Set("Authorization", "Bearer x")
		err := checkRedirect(req, []*http.Request{via})
		if (err != nil) != c.fails || err == nil && (req.Header.Get("Authorization") != "") != c.keeps {
			t.Errorf("%s to %s: %v, token %q", c.from, c.to, err, req.Header.Get("Authorization"))
		}
	}
}

func TestCheckFile(t *testing.T) {
	b := content(1, 3<<20)
	at := filepath.Join(t.TempDir(), "f")
	os.WriteFile(at, b, 0o644)
	for _, d := range []string{hubtest.SHA256(b), hubtest.GitBlob(b)} {
		var n int64
		if err := CheckFile(at, digestOf(`"`+d+`"`), func(m int64) { n += m }); err != nil || n != int64(len(b)) {
			t.Errorf("%s: %v after %d bytes", d, err, n)
		}
	}
	b[1<<20] ^= 1
	os.WriteFile(at, b, 0o644)
	b[1<<20] ^= 1
	for _, d := range []string{hubtest.SHA256(b), hubtest.GitBlob(b)} {
		if err := CheckFile(at, Digest(d), nil); !errors.Is(err, ErrDamaged) {
			t.Errorf("%s: %v", d, err)
		}
	}
}

// TestLinkAtOnce: pulls of one model at once leave its blob where it is, and each makes the link.
func TestLinkAtOnce(t *testing.T) {
	dir := t.TempDir()
	blob, at := filepath.Join(dir, "blob"), filepath.Join(dir, "snapshot", "config.json")
	if err := errors.Join(os.Mkdir(filepath.Dir(at), 0o700), os.WriteFile(blob, []byte("{}"), 0o600)); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 100 {
				if err := replaceLink("../blob", blob, at); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if st, err := os.Lstat(blob); err != nil || !st.Mode().IsRegular() {
		t.Errorf("the blob: %v, %v", st, err)
	}
	if to, err := os.Readlink(at); err != nil || to != "../blob" {
		t.Errorf("the link: %q, %v", to, err)
	}
	if all, err := os.ReadDir(filepath.Dir(at)); err != nil || len(all) != 1 {
		t.Errorf("the folder has %v, %v", all, err)
	}
}
