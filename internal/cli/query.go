package cli

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/shoal-llm/shoal/internal/cli/models"
)

// query is the meaning of the arguments of `shoal run`: a model, a text, or both.
type query struct {
	checkpoint string   // path of the model; "" for the server's
	pull       string   // model that must be pulled first
	served     string   // name of the model on the server; "" for its default
	text       []string // nil for standard input
}

// modelName matches names of models in registries, and few ordinary words: a digit after a
// letter, or a mark between two letters, as in llama3, deepseek-r1 and my_model.
var modelName = regexp.MustCompile(`[A-Za-z].*\d|[A-Za-z0-9][-_.:].*[A-Za-z]|[A-Za-z].*[-_.:][A-Za-z0-9]`)

// families are the names of model families without a version.
var families = []string{"llama", "codellama", "tinyllama", "mistral", "mixtral", "qwen", "gemma",
	"phi", "deepseek", "falcon", "granite", "fry"}

// oneWord matches a word that can be the name of a model.
var oneWord = regexp.MustCompile(`^[A-Za-z0-9][\w.:@+-]*$`)

// likeModel reports whether a single word looks like a model rather than a text.
func likeModel(word string) bool {
	if !oneWord.MatchString(word) {
		return false
	}
	near, distance := nearest(strings.ToLower(word), families)
	return modelName.MatchString(word) || near != "" && (distance == 0 || distance == 1 && len(word) > 3)
}

// understand finds the model in the arguments of `shoal run`. The first argument is the model if
// it names a checkpoint, a model on the server, or a model that can be pulled. It is an error if
// it looks like a model but names none: a path, a .gguf file, a name as in registries, or a
// single word before more text. All other arguments are text.
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

// textArgs returns nil for no text, and for "-", which means standard input.
func textArgs(words []string) []string {
	if len(words) == 0 || slices.Equal(words, []string{"-"}) {
		return nil
	}
	return words
}

// isPath reports whether an argument of `shoal run` is a path. A single argument with slashes and
// spaces is a text.
func isPath(word string, more bool) bool {
	if strings.EqualFold(filepath.Ext(word), ".gguf") {
		return true
	}
	return strings.ContainsAny(word, `/\`) && (more || !strings.ContainsAny(word, " \t\r\n"))
}

// notText returns the error for a first argument that is not a model.
func notText(first string, rest []string) error {
	if len(rest) == 0 {
		return fmt.Errorf("%w; to send it as a text: echo %s | shoal run", models.ErrNoModel(first), quoted(first))
	}
	return fmt.Errorf("%w; if it belongs to the text, quote the text: shoal run %s", models.ErrNoModel(first),
		quoted(strings.Join(append([]string{first}, rest...), " ")))
}

// quoted quotes a text for a shell, and shortens a long one.
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
