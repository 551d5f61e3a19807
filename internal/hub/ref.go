package hub

import (
	"errors"
	"fmt"
	"net/url"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"unicode"

	"github.com/shoal-llm/shoal/internal/hub/layout"
)

// Kind is the kind of place to which a reference points.
type Kind uint8

const (
	Hub      Kind = iota + 1 // a repository of a Hugging Face compatible hub
	Registry                 // a model of an Ollama (OCI) registry
	URL                      // one file on a web server
	Local                    // a folder or a file on this machine
)

// Ref is a parsed model reference. Only the fields of its Kind are set.
type Ref struct {
	Kind     Kind
	Repo     string // Hub: org/name. Registry: namespace/name
	Revision string // Hub: branch, tag or commit; "" is the main branch
	File     string // Hub: one .gguf file, as a path in the repository
	Quant    string // Hub: the quantization that chooses a .gguf file, such as Q4_K_M
	Host     string // Registry: host[:port]
	Tag      string // Registry: a tag, or a digest such as sha256:...
	URL      string // URL
	Path     string // Local
}

// Forms lists the forms of a model reference. Errors about a reference end with it.
const Forms = `a model is one of
  org/name                    a repository of the hub
  org/name@revision           its branch, tag or commit
  org/name:Q4_K_M             its GGUF file of that quantization
  org/name:file.gguf          that GGUF file
  hf://org/name               the same repository, written as a URL
  ollama://name:tag           a model of Ollama's registry
  ollama://host/space/name    a model of another registry
  https://host/file.gguf      a file on a web server
  path/to/folder-or-file      a model on this machine`

// ErrRef: the text is not a model reference.
var ErrRef = errors.New("hub: not a model")

// OllamaHost is the registry of references that name no host.
const OllamaHost = "registry.ollama.ai"

const (
	maxRef      = 2048 // bytes of a reference
	maxSegment  = 96   // bytes of an owner or a name, as the hub allows
	defaultTag  = "latest"
	ollamaSpace = "library" // the namespace of names that have none
)

var (
	hubSegment   = regexp.MustCompile(`^[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?$`)
	quantWord    = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$`)
	ociSegment   = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$`)
	ociDigest    = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)
	hostAndPort  = regexp.MustCompile(`^(localhost|[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+|\[[0-9a-fA-F:]+\])(:[0-9]{1,5})?$|^[A-Za-z0-9-]+:[0-9]{1,5}$`)
	commitHash   = regexp.MustCompile(`^[0-9a-f]{40}$`)
	hubWebHosts  = map[string]bool{"hf.co": true, "huggingface.co": true, "www.huggingface.co": true}
	notInRefName = regexp.MustCompile(`[\x00-\x20~^:?*\[\\\x7f]|\.\.|//|@\{`)
)

// Parse reads a reference. It does not look at the disk: a caller that accepts folders
// without ./ in front checks for a folder of that name first.
func Parse(text string) (Ref, error) {
	r, err := parse(text)
	if err != nil {
		shown := text
		if len(shown) > 200 {
			shown = shown[:200] + "..."
		}
		return Ref{}, fmt.Errorf("%w: %q: %w; %s", ErrRef, shown, err, Forms)
	}
	return r, nil
}

func parse(text string) (Ref, error) {
	switch {
	case text == "":
		return Ref{}, errors.New("the name is empty")
	case len(text) > maxRef:
		return Ref{}, fmt.Errorf("%d bytes are too long; at most %d", len(text), maxRef)
	case strings.ContainsFunc(text, unicode.IsControl):
		return Ref{}, errors.New("it has a control character")
	}
	if scheme, rest, ok := strings.Cut(text, "://"); ok {
		switch strings.ToLower(scheme) {
		case "hf", "huggingface":
			return parseHub(rest)
		case "ollama":
			return parseRegistry(rest)
		case "http", "https":
			return parseURL(text)
		case "file":
			return local(rest), nil
		}
		return Ref{}, fmt.Errorf("scheme %q is not known", scheme)
	}
	if isPath(text) {
		return local(text), nil
	}
	if strings.ContainsFunc(text, unicode.IsSpace) {
		return Ref{}, errors.New("it has a space, and no file has this name")
	}
	first, rest, many := strings.Cut(text, "/")
	switch {
	case many && hubWebHosts[first]:
		return parseHub(rest)
	case many && hostAndPort.MatchString(first) && (strings.Contains(first, ":") || strings.Contains(rest, "/")):
		return parseRegistry(text)
	case !many && strings.HasPrefix(text, layout.RepoPrefix):
		return parseHub(strings.Replace(strings.TrimPrefix(text, layout.RepoPrefix), "--", "/", 1))
	case !many:
		return Ref{}, fmt.Errorf("no file or bundled model has this name, and org/ is missing for one of the hub; Ollama's would be ollama://%s",
			text)
	case strings.Count(strings.TrimRight(untilSelector(text), "/"), "/") > 1:
		return local(text), nil
	}
	return parseHub(text)
}

// isPath reports whether text can only be a path.
func isPath(text string) bool {
	for _, prefix := range []string{"/", "./", "../", "~", `.\`, `..\`} {
		if strings.HasPrefix(text, prefix) {
			return true
		}
	}
	return text == "." || text == ".." || filepath.IsAbs(text) ||
		!strings.Contains(text, ":") && isGGUF(text)
}

func isGGUF(name string) bool { return strings.EqualFold(path.Ext(name), ".gguf") }

func local(p string) Ref { return Ref{Kind: Local, Path: filepath.Clean(p)} }

// untilSelector is text before its @ or :.
func untilSelector(text string) string {
	if i := strings.IndexAny(text, "@:"); i >= 0 {
		return text[:i]
	}
	return text
}

// parseHub reads org/name[@revision][:choice], and org/name[@revision]/file.gguf.
func parseHub(text string) (Ref, error) {
	r := Ref{Kind: Hub}
	id := untilSelector(text)
	rest := text[len(id):]
	if parts := strings.SplitN(id, "/", 3); len(parts) == 3 && parts[2] != "" {
		if rest != "" {
			return Ref{}, fmt.Errorf("%q comes after the path of a file", rest)
		}
		id, rest = parts[0]+"/"+parts[1], ":"+parts[2]
	}
	r.Repo = strings.TrimSuffix(id, "/")
	if err := checkRepo(r.Repo); err != nil {
		return Ref{}, err
	}
	if after, ok := strings.CutPrefix(rest, "@"); ok {
		r.Revision, rest = after, ""
		if i := strings.IndexByte(after, ':'); i >= 0 {
			r.Revision, rest = after[:i], after[i:]
		} else if before, file, ok := strings.Cut(after, "/"); ok && isGGUF(file) {
			r.Revision, rest = before, ":"+file
		}
		if err := checkRevision(r.Revision); err != nil {
			return Ref{}, err
		}
	}
	choice, ok := strings.CutPrefix(rest, ":")
	switch {
	case !ok:
	case choice == "":
		return Ref{}, errors.New("nothing follows the colon")
	case isGGUF(choice):
		if err := CheckFileName(choice); err != nil {
			return Ref{}, err
		}
		r.File = choice
	case strings.Contains(choice, "/"):
		return Ref{}, fmt.Errorf("%q is not a .gguf file; other models are fetched whole", choice)
	case !quantWord.MatchString(choice):
		return Ref{}, fmt.Errorf("%q is neither a quantization nor a .gguf file", choice)
	case !strings.EqualFold(choice, defaultTag):
		r.Quant = choice
	}
	return r, nil
}

// checkRepo holds the hub's own rules for ids. They also make the folder of the cache
// unambiguous: an id never contains --.
func checkRepo(id string) error {
	owner, name, ok := strings.Cut(id, "/")
	if !ok || owner == "" || name == "" {
		return fmt.Errorf("%q is not org/name", id)
	}
	for _, s := range []string{owner, name} {
		if len(s) > maxSegment || !hubSegment.MatchString(s) || strings.Contains(s, "--") || strings.Contains(s, "..") {
			return fmt.Errorf("%q: an owner or a name has at most %d of letters, digits, hyphen, underscore and dot, without -- and without two "+
				"dots in a row", s, maxSegment)
		}
	}
	return nil
}

// checkRevision holds git's rules for names of refs, so that refs/REVISION stays in its
// folder.
func checkRevision(rev string) error {
	switch {
	case rev == "":
		return errors.New("no revision follows the @")
	case len(rev) > 255 || notInRefName.MatchString(rev) || strings.HasPrefix(rev, "-") || strings.HasSuffix(rev, ".lock") ||
		!filepath.IsLocal(filepath.FromSlash(rev)):
		return fmt.Errorf("revision %q is not a name that git allows", rev)
	}
	for s := range strings.SplitSeq(rev, "/") {
		if s == "" || strings.HasPrefix(s, ".") {
			return fmt.Errorf("revision %q is not a name that git allows", rev)
		}
	}
	return nil
}

// parseRegistry reads [host/][namespace/]name[:tag], and @sha256:... in place of the tag.
func parseRegistry(text string) (Ref, error) {
	r := Ref{Kind: Registry, Host: OllamaHost, Tag: defaultTag}
	text = strings.TrimSuffix(text, "/")
	if first, rest, ok := strings.Cut(text, "/"); ok && hostAndPort.MatchString(first) &&
		(strings.ContainsAny(first, ":.") || first == "localhost") {
		r.Host, text = strings.ToLower(first), rest
	}
	if name, digest, ok := strings.Cut(text, "@"); ok {
		if !ociDigest.MatchString(digest) {
			return Ref{}, fmt.Errorf("%q is not a digest; want sha256: and 64 hexadecimal digits", digest)
		}
		text, r.Tag = name, digest
	} else if name, tag, ok := strings.Cut(text, ":"); ok {
		if !ociSegment.MatchString(tag) || strings.Contains(tag, "..") {
			return Ref{}, fmt.Errorf("tag %q: want at most 128 of letters, digits, hyphen, underscore and dot", tag)
		}
		text, r.Tag = name, tag
	}
	if !strings.Contains(text, "/") {
		text = ollamaSpace + "/" + text
	}
	for s := range strings.SplitSeq(text, "/") {
		if !ociSegment.MatchString(s) || strings.Contains(s, "..") || strings.Contains(s, "--") {
			return Ref{}, fmt.Errorf("%q is not the name of a registry: want letters, digits, hyphen, underscore and dot, without -- and without "+
				"two dots in a row", s)
		}
	}
	if strings.Count(text, "/") > 3 {
		return Ref{}, fmt.Errorf("%q has more than four parts", text)
	}
	r.Repo = text
	return r, nil
}

// parseURL reads the URL of a file. Pages and files of huggingface.co become references
// of the hub, which has hashes for them.
func parseURL(text string) (Ref, error) {
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return Ref{}, errors.New("it is not a valid URL")
	case u.Host == "":
		return Ref{}, errors.New("the URL has no host")
	case u.User != nil:
		return Ref{}, errors.New("a password in a URL would be shown and logged")
	}
	if hubWebHosts[strings.ToLower(u.Host)] {
		parts := strings.Split(strings.Trim(u.Path, "/"), "/")
		switch {
		case len(parts) == 2:
			return parseHub(parts[0] + "/" + parts[1])
		case len(parts) == 4 && parts[2] == "tree":
			return parseHub(parts[0] + "/" + parts[1] + "@" + parts[3])
		case len(parts) >= 5 && (parts[2] == "resolve" || parts[2] == "blob"):
			return parseHub(parts[0] + "/" + parts[1] + "@" + parts[3] + ":" + strings.Join(parts[4:], "/"))
		}
	}
	if name := path.Base(u.Path); !isGGUF(name) {
		return Ref{}, fmt.Errorf("%q is not a .gguf file; a model in several files comes from a hub", name)
	} else if err := CheckFileName(name); err != nil {
		return Ref{}, err
	}
	u.Fragment = ""
	return Ref{Kind: URL, URL: u.String()}, nil
}

// CheckFileName refuses paths of files that do not stay in the folder of their
// repository, or that no file system takes.
func CheckFileName(name string) error {
	switch {
	case name == "":
		return errors.New("a file has an empty name")
	case len(name) > 1024:
		return fmt.Errorf("the file name %q... has %d bytes; at most 1024", name[:64], len(name))
	case strings.ContainsFunc(name, unicode.IsControl) || strings.ContainsAny(name, "\\:"):
		return fmt.Errorf("the file name %q has a control character, a backslash or a colon", name)
	case !filepath.IsLocal(filepath.FromSlash(name)) || path.Clean(name) != name || name == ".":
		return fmt.Errorf("the file name %q leaves its folder", name)
	}
	for s := range strings.SplitSeq(name, "/") {
		if len(s) > 255 {
			return fmt.Errorf("the file name %q... has a part of %d bytes; at most 255", s[:64], len(s))
		}
	}
	return nil
}

// String writes a reference such that Parse reads the same one.
func (r Ref) String() string {
	switch r.Kind {
	case Hub:
		s := r.Repo
		if r.Revision != "" {
			s += "@" + r.Revision
		}
		if choice := r.File + r.Quant; choice != "" {
			s += ":" + choice
		}
		if again, err := parse(s); err != nil || again != r { // a name that looks like a file or a host
			s = "hf://" + s
		}
		return s
	case Registry:
		sep := ":"
		if ociDigest.MatchString(r.Tag) {
			sep = "@"
		}
		if r.Host == OllamaHost {
			return "ollama://" + strings.TrimPrefix(r.Repo, ollamaSpace+"/") + sep + r.Tag
		}
		return "ollama://" + r.Host + "/" + r.Repo + sep + r.Tag
	case URL:
		return r.URL
	}
	return r.Path
}

// revision returns the revision that is asked for.
func (r Ref) revision() string {
	if r.Revision == "" {
		return "main"
	}
	return r.Revision
}
