package cli

import (
	"fmt"
	"strings"

	"github.com/alecthomas/kong"
)

// usageError returns the text of an error of the command line. For an unknown command it suggests
// the nearest one.
func usageError(err error, ctx *kong.Context) string {
	word, found := strings.CutPrefix(err.Error(), "unexpected argument ")
	if !found || ctx == nil {
		return err.Error()
	}
	word, _, _ = strings.Cut(word, ", did you mean")
	app := ctx.Model.Node
	at, path := app, "shoal"
	if n := ctx.Selected(); n != nil {
		at, path = n, "shoal"+pathOf(n)
	}
	if len(at.Children) == 0 {
		return fmt.Sprintf("%s takes no argument %q here", path, word)
	}
	var known []string
	for _, c := range at.Children {
		if !c.Hidden {
			known = append(append(known, c.Name), c.Aliases...)
		}
	}
	text := fmt.Sprintf("no command %q", word)
	if at != app {
		text = fmt.Sprintf("no command %q of %s", word, path)
	}
	if near := nearestCommand(word, known); near != "" {
		text += fmt.Sprintf("; did you mean %q?", near)
	}
	return text
}

// pathOf returns the names of the parent commands and of n, each after a space.
func pathOf(n *kong.Node) string {
	if n.Parent == nil {
		return ""
	}
	return pathOf(n.Parent) + " " + n.Name
}

// nearestCommand returns the command that begins with word, or else the one with the smallest edit
// distance. It returns "" if none is near.
func nearestCommand(word string, known []string) string {
	for _, k := range known {
		if word != "" && strings.HasPrefix(k, strings.ToLower(word)) {
			return k
		}
	}
	near, _ := nearest(strings.ToLower(word), known)
	return near
}
