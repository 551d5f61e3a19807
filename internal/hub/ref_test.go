package hub

import (
	"errors"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	digest := "sha256:" + strings.Repeat("a", 64)
	for text, want := range map[string]Ref{
		"Qwen/Qwen3-0.6B":                   {Kind: Hub, Repo: "Qwen/Qwen3-0.6B"},
		"Qwen/Qwen3-0.6B/":                  {Kind: Hub, Repo: "Qwen/Qwen3-0.6B"},
		"org/name@v1.0":                     {Kind: Hub, Repo: "org/name", Revision: "v1.0"},
		"org/name@refs/pr/7":                {Kind: Hub, Repo: "org/name", Revision: "refs/pr/7"},
		"org/name@main:Q4_K_M":              {Kind: Hub, Repo: "org/name", Revision: "main", Quant: "Q4_K_M"},
		"org/name:Q4_K_M":                   {Kind: Hub, Repo: "org/name", Quant: "Q4_K_M"},
		"org/name:latest":                   {Kind: Hub, Repo: "org/name"},
		"org/name:m.gguf":                   {Kind: Hub, Repo: "org/name", File: "m.gguf"},
		"org/name:Q8/m-00001-of-00002.gguf": {Kind: Hub, Repo: "org/name", File: "Q8/m-00001-of-00002.gguf"},
		"hf://org/name":                     {Kind: Hub, Repo: "org/name"},
		"hf://org/name/sub/m.GGUF":          {Kind: Hub, Repo: "org/name", File: "sub/m.GGUF"},
		"hf://org/name@v1/m.gguf":           {Kind: Hub, Repo: "org/name", Revision: "v1", File: "m.gguf"},
		"hf.co/org/name:Q8_0":               {Kind: Hub, Repo: "org/name", Quant: "Q8_0"},
		"https://huggingface.co/org/name":   {Kind: Hub, Repo: "org/name"},
		"https://hf.co/org/name/tree/v2":    {Kind: Hub, Repo: "org/name", Revision: "v2"},
		"models--org--name":                 {Kind: Hub, Repo: "org/name"},
		"ollama://qwen3":                    {Kind: Registry, Host: OllamaHost, Repo: "library/qwen3", Tag: "latest"},
		"ollama://qwen3:0.6b":               {Kind: Registry, Host: OllamaHost, Repo: "library/qwen3", Tag: "0.6b"},
		"ollama://MFDoom/x:7b":              {Kind: Registry, Host: OllamaHost, Repo: "MFDoom/x", Tag: "7b"},
		"ollama://qwen3@" + digest:          {Kind: Registry, Host: OllamaHost, Repo: "library/qwen3", Tag: digest},
		"ollama://reg.example.com/a/b:c":    {Kind: Registry, Host: "reg.example.com", Repo: "a/b", Tag: "c"},
		"ollama://localhost:5000/b":         {Kind: Registry, Host: "localhost:5000", Repo: "library/b", Tag: "latest"},
		"localhost:5000/a/b:c":              {Kind: Registry, Host: "localhost:5000", Repo: "a/b", Tag: "c"},
		"127.0.0.1:5000/b:c":                {Kind: Registry, Host: "127.0.0.1:5000", Repo: "library/b", Tag: "c"},
		"[::1]:5000/a/b":                    {Kind: Registry, Host: "[::1]:5000", Repo: "a/b", Tag: "latest"},
		"registry.ollama.ai/library/qwen3":  {Kind: Registry, Host: OllamaHost, Repo: "library/qwen3", Tag: "latest"},
		"https://ex.org/d/m.gguf?x=1":       {Kind: URL, URL: "https://ex.org/d/m.gguf?x=1"},
		"https://ex.org/d/m.gguf#top":       {Kind: URL, URL: "https://ex.org/d/m.gguf"},
		"/srv/models/llama":                 {Kind: Local, Path: "/srv/models/llama"},
		"./llama/":                          {Kind: Local, Path: "llama"},
		"~/llama":                           {Kind: Local, Path: "~/llama"},
		"file:///srv/m.gguf":                {Kind: Local, Path: "/srv/m.gguf"},
		"m.gguf":                            {Kind: Local, Path: "m.gguf"},
		"a/m.gguf":                          {Kind: Local, Path: "a/m.gguf"},
		"a/b/c":                             {Kind: Local, Path: "a/b/c"},
		"a/snapshots/0123/":                 {Kind: Local, Path: "a/snapshots/0123"},
		"https://huggingface.co/o/n/resolve/main/q/m.gguf?download=true": {Kind: Hub, Repo: "o/n", Revision: "main", File: "q/m.gguf"},
		"https://huggingface.co/o/n/blob/main/m.gguf":                    {Kind: Hub, Repo: "o/n", Revision: "main", File: "m.gguf"},
	} {
		got, err := Parse(text)
		if err != nil || got != want {
			t.Errorf("Parse(%q) = %+v, %v; want %+v", text, got, err, want)
			continue
		}
		if again, err := Parse(got.String()); got.Kind != Local && (err != nil || again != got) {
			t.Errorf("Parse(%q).String() = %q, which parses as %+v, %v", text, got, again, err)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"":                               "empty",
		"gpt2":                           "ollama://gpt2",
		"org/":                           "not org/name",
		"org/na me":                      "space",
		"org/na\x00me":                   "control character",
		"org/a--b":                       "without --",
		"org/a..b":                       "without --",
		"hf://-org/name":                 "an owner or a name",
		"hf://..":                        "not org/name",
		"hf://../../etc":                 "an owner or a name",
		"hf://org":                       "not org/name",
		"org/" + strings.Repeat("n", 97): "at most 96",
		"org/name@":                      "no revision",
		"org/name@../../x":               "git allows",
		"org/name@a..b":                  "git allows",
		"org/name@/etc":                  "git allows",
		"org/name@-x":                    "git allows",
		"org/name@a/.b":                  "git allows",
		"org/name:":                      "nothing follows",
		"org/name:../m.gguf":             "leaves its folder",
		"org/name:/m.gguf":               "leaves its folder",
		`org/name:a\m.gguf`:              "backslash",
		"org/name:x/config.json":         "fetched whole",
		"org/name:a+b":                   "neither a quantization",
		"hf://org/name/m.gguf:Q8_0":      "comes after",
		"s3://bucket/x":                  `scheme "s3" is not known`,
		"http://":                        "no host",
		"https://ex.org/":                "not a .gguf file",
		"https://ex.org/model.bin":       "not a .gguf file",
		"https://u:p@ex.org/m.gguf":      "password",
		"https://ex.org/%zz.gguf":        "valid URL",
		"ollama://":                      "not the name of a registry",
		"ollama://a:b:c":                 "tag",
		"ollama://a@sha256:12":           "digest",
		"ollama://a/../b":                "not the name of a registry",
		"ollama://ex.org/a/b/c/d/e":      "more than four",
		strings.Repeat("a", 3000):        "too long",
	} {
		_, err := Parse(text)
		if !errors.Is(err, ErrRef) || !strings.Contains(err.Error(), want) {
			t.Errorf("Parse(%.40q) = %v; want an error with %q", text, err, want)
		} else if !strings.Contains(err.Error(), "ollama://name:tag") {
			t.Errorf("Parse(%.40q): the error does not show the forms: %v", text, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"org/name@v1:Q4_K_M", "ollama://h:1/a/b:c", "https://hf.co/a/b/resolve/x/y.gguf", "~/x", "a/b/c"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		r, err := Parse(text)
		if err != nil {
			return
		}
		if r.Kind == Local {
			return
		}
		again, err := Parse(r.String())
		if err != nil || again != r {
			t.Errorf("%q is %+v, written %q, read again %+v, %v", text, r, r, again, err)
		}
	})
}
