package cli

import (
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"github.com/shoal-llm/shoal/internal/options"
)

// usageError returns the text of an error of the command line. For an unknown command it suggests
// the nearest one.
func usageError(err error, app *kong.Node) string {
	var parse *kong.ParseError
	word, found := strings.CutPrefix(err.Error(), "unexpected argument ")
	if !found || !errors.As(err, &parse) {
		return err.Error()
	}
	word, _, _ = strings.Cut(word, ", did you mean")
	at, path := app, "shoal"
	if n := parse.Context.Selected(); n != nil {
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

// plainNumbers parses the numbers of flags, with plain error messages.
func plainNumbers() kong.Option {
	whole := func(bits int) kong.MapperFunc {
		return number("a whole number", func(text string, v reflect.Value) error {
			n, err := strconv.ParseInt(text, 0, bits)
			v.SetInt(n)
			return err
		})
	}
	mappers := []kong.Option{
		kong.KindMapper(reflect.Int, whole(strconv.IntSize)),
		kong.KindMapper(reflect.Int64, whole(64)),
		kong.KindMapper(reflect.Float64, number("a number", func(text string, v reflect.Value) error {
			x, err := strconv.ParseFloat(text, 64)
			v.SetFloat(x)
			return err
		})),
		kong.NamedMapper("size", number("a size", func(text string, v reflect.Value) error {
			n, err := options.ParseSize(text)
			v.SetInt(n)
			return err
		})),
		kong.TypeMapper(reflect.TypeFor[time.Duration](), number("a duration, as 500ms, 30s or 5m", func(text string, v reflect.Value) error {
			d, err := time.ParseDuration(text)
			v.SetInt(int64(d))
			return err
		})),
	}
	return kong.OptionFunc(func(k *kong.Kong) error {
		for _, o := range mappers {
			if err := o.Apply(k); err != nil {
				return err
			}
		}
		return nil
	})
}

// number returns a decoder that parses a value with set; what describes the valid values.
func number(what string, set func(text string, v reflect.Value) error) kong.MapperFunc {
	return func(ctx *kong.DecodeContext, target reflect.Value) error {
		t, err := ctx.Scan.PopValue("number")
		if err != nil {
			return err
		}
		text := fmt.Sprint(t.Value)
		err = set(text, target)
		switch {
		case what == "a size":
			return err
		case errors.Is(err, strconv.ErrRange):
			return fmt.Errorf("%s is out of range", text)
		case err != nil:
			return fmt.Errorf("want %s, not %q", what, text)
		}
		return nil
	}
}
