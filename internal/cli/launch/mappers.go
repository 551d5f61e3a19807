package launch

import (
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"time"

	"github.com/alecthomas/kong"

	"github.com/shoal-llm/shoal/internal/options"
)

// PlainValues parses the numbers and paths of flags, with plain error messages.
func PlainValues() kong.Option {
	whole := func(bits int) kong.MapperFunc {
		return number("a whole number", func(text string, v reflect.Value) error {
			n, err := strconv.ParseInt(text, 0, bits)
			v.SetInt(n)
			return err
		})
	}
	duration := func(text string, v reflect.Value) error {
		d, err := time.ParseDuration(text)
		v.SetInt(int64(d))
		return err
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
		kong.NamedMapper("path", kong.MapperFunc(decodePath)),
		kong.TypeMapper(reflect.TypeFor[time.Duration](), number("a duration, such as 500ms, 30s or 5m", duration)),
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

// decodePath decodes the path of a file or folder, relative to the current folder. An empty one is an
// error: it would be the current folder, which an unset variable of a script must not fill with files.
func decodePath(ctx *kong.DecodeContext, target reflect.Value) error {
	var text string
	if err := ctx.Scan.PopValueInto("path", &text); err != nil {
		return err
	}
	switch text {
	case "":
		return errors.New("the path is empty; give one (. is the current folder), or leave the option out")
	case "-":
	default:
		text = kong.ExpandPath(text)
	}
	target.SetString(text)
	return nil
}

// number returns a decoder that parses a value with set. The parameter what names the valid values in errors.
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
