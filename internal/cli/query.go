package cli

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// query is what the arguments of `shoal run` mean: a model, a text, or both.
type query struct {
	checkpoint string   // path of the model; "": the server's
	pull       string   // the model is not on this machine, and has to be pulled first
	served     string   // name under which the server serves the model; "": its default
	text       []string // nil: standard input
}

// modelName finds what names of models have in registries and words seldom have: a digit
// after a letter, or a mark between two letters, as in llama3, deepseek-r1 and my_model.
var modelName = regexp.MustCompile(`[A-Za-z].*\d|[A-Za-z0-9][-_.:].*[A-Za-z]|[A-Za-z].*[-_.:][A-Za-z0-9]`)

// families are the bare names of families of models.
var families = []string{"llama", "codellama", "tinyllama", "mistral", "mixtral", "qwen", "gemma", "phi", "deepseek", "falcon", "granite", "fry"}

// oneWord matches a word that could be the name of a model.
var oneWord = regexp.MustCompile(`^[A-Za-z0-9][\w.:@+-]*$`)

// likeModel tells whether a word that stands alone is meant as a model rather than as a text.
func likeModel(word string) bool {
	if !oneWord.MatchString(word) {
		return false
	}
	near, distance := nearest(strings.ToLower(word), families)
	return modelName.MatchString(word) || near != "" && (distance == 0 || distance == 1 && len(word) > 3)
}

// understand finds the model among the arguments of `shoal run`. The first argument is the
// model when it names a checkpoint, a model of the server, or one that can be pulled. It is an error when it can
// only be meant as a model and names none: a path, a .gguf file, a name as registries have
// them, or a single word before more text. All else is text.
func understand(words []string, checkpoint func(string) string, served, pull func(string) bool) (query, error) {
	if len(words) == 0 || words[0] == "-" {
		return query{text: textArgs(words)}, nil
	}
	first, rest := words[0], words[1:]
	if at := checkpoint(first); at != "" {
		return query{checkpoint: at, text: textArgs(rest)}, nil
	}
	if len(rest) > 0 && oneWord.MatchString(first) || likeModel(first) || isPath(first, len(rest) > 0) {
		if served(first) {
			return query{served: first, text: textArgs(rest)}, nil
		}
		if pull(first) {
			return query{pull: first, text: textArgs(rest)}, nil
		}
		return query{}, notText(first, rest)
	}
	return query{text: textArgs(words)}, nil
}

// typed is nil for no text, and for "-", which is standard input.
func textArgs(words []string) []string {
	if len(words) == 0 || slices.Equal(words, []string{"-"}) {
		return nil
	}
	return words
}

// isPath tells whether an argument of `shoal run` is a path. One that stands alone may be a
// text with slashes, if it has spaces.
func isPath(word string, more bool) bool {
	if strings.EqualFold(filepath.Ext(word), ".gguf") {
		return true
	}
	return strings.ContainsAny(word, `/\`) && (more || !strings.ContainsAny(word, " \t\r\n"))
}

// notText is the error for a first argument that is no model.
func notText(first string, rest []string) error {
	if len(rest) == 0 {
		return fmt.Errorf("%w; to send it as a text: echo %s | shoal run", errNoModel(first), quoted(first))
	}
	return fmt.Errorf("%w; if it belongs to the text, quote the text: shoal run %s", errNoModel(first), quoted(strings.Join(append([]string{first}, rest...), " ")))
}

// quoted is a text for a shell, cut where it is long.
func quoted(text string) string {
	const most = 60
	if r := []rune(text); len(r) > most {
		text = string(r[:most-3]) + "..."
	}
	if strings.ContainsAny(text, "\"$`\\!\n") {
		return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
	}
	return `"` + text + `"`
}
