package cli

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// foreign lists flags of other programs in the pages.
var foreign = strings.Fields(`--bench --buffer-float-type --bytes --check --data-parallel-size --delays --enable-lora --enable-prefix-caching --gpus
	--from-literal --gpu-memory-utilization --ignore-missing --install --kinds --kv-cache-dtype --lora-modules --max-model-len
	--max-num-batched-tokens --max-num-seqs --max-seq-len --net-turbo --now --pipeline-parallel-size --pooler-config
	--quantization --ranks --rm --blocks --seconds --shapes --runner --served-model-name
	--speculative-config --tensor-parallel-size --tool-call-parser`)

// mistyped lists wrong flags that a page shows with their error.
var mistyped = []string{"--kv-memry"}

var (
	flagInText  = regexp.MustCompile("(?:^|[ `(])(--[a-z][a-z0-9-]+)")
	routeInText = regexp.MustCompile("(?:GET|POST|DELETE) (/[a-z0-9_/{}]+)")
)

// TestDocsNameFlagsAndRoutes checks that a command has every flag in the pages, and that docs/http.md,
// which a server generates, has every route.
func TestDocsNameFlagsAndRoutes(t *testing.T) {
	pages := map[string]string{}
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/decisions/*.md"} {
		files, err := filepath.Glob(filepath.Join("..", "..", pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			text, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			pages[strings.TrimPrefix(filepath.ToSlash(f), "../../")] = string(text)
		}
	}
	delete(pages, "CHANGELOG.md") // it can name removed flags
	known := map[string]bool{}
	for _, f := range flagInText.FindAllStringSubmatch(output(t, "man", "--markdown"), -1) {
		known[f[1]], known["--no-"+strings.TrimPrefix(f[1], "--")] = true, true // a boolean flag can be negatable
	}
	for _, f := range slices.Concat(foreign, mistyped) {
		known[f] = true
	}
	routes := pages["docs/http.md"]
	flags := 0
	for _, name := range slices.Sorted(maps.Keys(pages)) {
		text := pages[name]
		for _, m := range flagInText.FindAllStringSubmatch(text, -1) {
			if flags++; !known[m[1]] {
				t.Errorf("%s names the flag %s, which no command has", name, m[1])
			}
		}
		for _, m := range routeInText.FindAllStringSubmatch(text, -1) {
			if !strings.Contains(routes, " "+m[1]) && !strings.Contains(routes, " "+strings.ReplaceAll(m[1], "{name}", "{id}")) {
				t.Errorf("%s names the route %s, which docs/http.md does not list", name, m[1])
			}
		}
	}
	if flags < 300 {
		t.Errorf("%d flags found in the pages, want at least 300", flags)
	}
}
