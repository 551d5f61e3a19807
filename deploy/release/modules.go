package main

import (
	"bytes"
	"context"
	"debug/buildinfo"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// module is a module linked into a program.
type module struct {
	path, version string
	sum           string // as in go.sum: h1: and a SHA-256 in base64
	dir           string // of its sources
}

// linked reads from a program the modules it was built from, sorted by path.
func linked(ctx context.Context, program string) ([]module, error) {
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return nil, err
	}
	c := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Path}} {{.Version}} {{.Dir}}", "all")
	c.Stderr = os.Stderr
	text, err := c.Output()
	if err != nil {
		return nil, fmt.Errorf("go list -m all: %w", err)
	}
	dirs := map[string]string{}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) == 3 {
			dirs[f[0]+" "+f[1]] = f[2]
		}
	}
	out := []module{{path: "std", version: info.GoVersion}}
	for _, d := range info.Deps {
		if d.Replace != nil {
			d = d.Replace
		}
		out = append(out, module{d.Path, d.Version, d.Sum, dirs[d.Path+" "+d.Version]})
	}
	slices.SortFunc(out, func(a, b module) int { return strings.Compare(a.path, b.path) })
	return out, nil
}

var licenceFile = regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice|patents|unlicense)([-.].*)?$`)

// notices returns the licences of the linked modules, which must accompany the program. Go's own is
// identical to that of golang.org/x/sys.
func notices(modules []module) ([]byte, error) {
	var b bytes.Buffer
	fmt.Fprintln(&b, "Shoal is under the Apache License 2.0 (LICENSE). Linked into it are:")
	for _, m := range modules {
		if m.path == "std" {
			continue
		}
		entries, err := os.ReadDir(m.dir)
		if err != nil {
			return nil, fmt.Errorf("the sources of %s %s: %w", m.path, m.version, err)
		}
		found := false
		for _, e := range entries {
			if e.IsDir() || !licenceFile.MatchString(e.Name()) {
				continue
			}
			text, err := os.ReadFile(filepath.Join(m.dir, e.Name()))
			if err != nil {
				return nil, err
			}
			found = true
			fmt.Fprintf(&b, "\n==== %s %s: %s\n\n%s\n", m.path, m.version, e.Name(), bytes.TrimSpace(text))
		}
		if !found {
			fmt.Fprintf(&b, "\n==== %s %s: its sources name no licence\n", m.path, m.version)
		}
	}
	return b.Bytes(), nil
}

// bill returns the CycloneDX bill of materials of a program.
func bill(s source, platform string, modules []module) ([]byte, error) {
	type hash struct {
		Alg     string `json:"alg"`
		Content string `json:"content"`
	}
	type component struct {
		Ref     string `json:"bom-ref,omitempty"`
		Type    string `json:"type"`
		Name    string `json:"name"`
		Version string `json:"version,omitempty"`
		Hashes  []hash `json:"hashes,omitempty"`
		PURL    string `json:"purl,omitempty"`
	}
	type dependency struct {
		Ref string   `json:"ref"`
		On  []string `json:"dependsOn"`
	}
	self := component{Ref: "shoal", Type: "application", Name: "shoal", Version: s.version + " " + s.commit + " " + platform}
	parts, refs := []component{}, []string{}
	for _, m := range modules {
		c := component{Type: "library", Name: m.path, Version: m.version, PURL: "pkg:golang/" + m.path + "@" + m.version}
		c.Ref = c.PURL
		if raw, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(m.sum, "h1:")); err == nil && len(raw) == 32 {
			c.Hashes = []hash{{"SHA-256", hex.EncodeToString(raw)}}
		}
		parts, refs = append(parts, c), append(refs, c.Ref)
	}
	return json.MarshalIndent(map[string]any{
		"bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
		"metadata":     map[string]any{"timestamp": s.made.UTC().Format(time.RFC3339), "component": self},
		"components":   parts,
		"dependencies": []dependency{{"shoal", refs}},
	}, "", "  ")
}
