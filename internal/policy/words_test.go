package policy

import (
	"go/ast"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode"
)

// retired are words of our own for what the field has a word for: forms of the word, the
// field's word, and the folders where it meant that ("": all; elsewhere the same word
// may be an honest one, as the lane of a vector is).
const retired = `
leg legs:                     stage                    in all
walk walks walked:            pass                     in actors
buddy buddies:                replica                  in all
uncopy uncopied uncopies:     drop the replica         in all
forgo forgoes forgone:        evict the replica        in all
lane lanes:                   micro-batch              in actors cluster bench
evidence:                     attention statistics     in all
deaf unheard:                 unreachable, quarantined in all
depot depots:                 store                    in all
seat seats:                   leader election          in all
keeper keepers:               store replica            in all
librarian librarians:         weight server            in all
library:                      weight server            in cluster
mirror mirrors mirrored:      weight cache, replica    in cluster actors
carry:                        resume                   in actors/socket
strand strands stranded:      say what happens         in all
spoil spoils spoilt spoiled:  damage                   in all
unlucky:                      say what happens         in all
course courses:               progress                 in jobs
ledger ledgers:               log (of placements)      in cluster topology
`

func TestWordsOfTheField(t *testing.T) {
	words, err := parseRetired(retired)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range sources(t) {
		if s.generated() || s.pkg == "internal/policy" {
			continue
		}
		for word, at := range wordsOf(s) {
			for _, r := range words[word] {
				if !r.holds(s.pkg) {
					continue
				}
				t.Errorf("%s: %q: the field says %s", at, word, r.say)
			}
		}
	}
}

// TestWordsOfTheDocs: what people read of the whole tree keeps to the same words.
func TestWordsOfTheDocs(t *testing.T) {
	words, err := parseRetired(retired)
	if err != nil {
		t.Fatal(err)
	}
	read := 0
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/*/*.md", "internal/bench/*/*.md", "internal/proto/*.proto", "internal/server/api/web/*.html", "internal/server/api/web/*s/*.js", "internal/server/api/web/*s/*.css"} {
		files, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			text, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			read++
			for n, line := range strings.Split(string(text), "\n") {
				for _, word := range split(line) {
					for _, r := range words[word] {
						if r.holds("") {
							t.Errorf("%s:%d: %q: the field says %s", f, n+1, word, r.say)
						}
					}
				}
			}
		}
	}
	if read < 20 {
		t.Fatalf("only %d documents found", read)
	}
}

func TestWordsCanFail(t *testing.T) {
	words, err := parseRetired("buddy buddies: replica in all\nlane: micro-batch in actors")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		file, text string
		want       bool
	}{
		{"a/a.go", "// the buddy keeps it\nvar x int", true},
		{"a/a.go", "var theBuddyOf int", true},
		{"a/a.go", "func BUDDIES() {}", true},
		{"a/a.go", "var somebody, nobuddyhere int", false},
		{"actors/a/a.go", "type planLane int", true},
		{"tensor/a.go", "type planLane int", false},
		{"a/a.go", `const help = "keeps a buddy"`, true},
	} {
		s := parse(t, c.file, "package p\n"+c.text+"\n")
		found := false
		for word := range wordsOf(s) {
			for _, r := range words[word] {
				found = found || r.holds(s.pkg)
			}
		}
		if found != c.want {
			t.Errorf("%s: %q: found %v, want %v", c.file, c.text, found, c.want)
		}
	}
	for _, bad := range []string{"x replica in all", "x: replica", "x: replica in "} {
		if _, err := parseRetired(bad); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}

// retiredWord is one line of the list.
type retiredWord struct {
	name, say string
	folders   []string
}

func (r *retiredWord) holds(pkg string) bool {
	return slices.ContainsFunc(r.folders, func(f string) bool { return f == "all" || pkg == f || strings.HasPrefix(pkg, f+"/") })
}

func parseRetired(text string) (map[string][]*retiredWord, error) {
	out := map[string][]*retiredWord{}
	for line := range strings.Lines(strings.TrimSpace(text)) {
		forms, rest, ok := strings.Cut(line, ":")
		say, folders, ok2 := strings.Cut(rest, " in ")
		r := &retiredWord{say: strings.TrimSpace(say), folders: strings.Fields(folders)}
		if !ok || !ok2 || len(r.folders) == 0 || r.say == "" {
			return nil, errBadWord(line)
		}
		for i, f := range strings.Fields(forms) {
			if i == 0 {
				r.name = f
			}
			out[f] = append(out[f], r)
		}
	}
	return out, nil
}

type errBadWord string

func (e errBadWord) Error() string { return "not WORDS: MEANING in FOLDERS: " + string(e) }

// wordsOf are the words of a file's names, comments and texts (help, logs, metrics), each with
// a place where it is.
func wordsOf(s source) map[string]string {
	out := map[string]string{}
	add := func(text, at string) {
		for _, w := range split(text) {
			if out[w] == "" {
				out[w] = at
			}
		}
	}
	ast.Inspect(s.file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.Ident:
			add(n.Name, s.at(n))
		case *ast.BasicLit:
			if n.Kind == token.STRING {
				add(n.Value, s.at(n))
			}
		}
		return true
	})
	for _, g := range s.file.Comments {
		for _, c := range g.List {
			add(c.Text, s.at(c))
		}
	}
	return out
}

// split cuts a text into words in small letters: at what is no letter, and before a
// capital that follows a small letter.
func split(text string) (words []string) {
	var b strings.Builder
	end := func() {
		if b.Len() > 0 {
			words = append(words, strings.ToLower(b.String()))
			b.Reset()
		}
	}
	small := false
	for _, r := range text {
		switch {
		case !unicode.IsLetter(r):
			end()
		case unicode.IsUpper(r) && small:
			end()
			b.WriteRune(r)
		default:
			b.WriteRune(r)
		}
		small = unicode.IsLower(r)
	}
	end()
	return words
}
