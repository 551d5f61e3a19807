package launch

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"github.com/shoal-llm/shoal/internal/cli/models"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/kvpolicy"
	"github.com/shoal-llm/shoal/internal/options"
)

// inEnvironment lists the flags that [commandLine] omits, since every user of the machine can
// read a command line. A process gets their values in its environment.
var inEnvironment = []string{"api-key"}

// commandLine returns the arguments that start another process of this program with the same
// flags. cmd points to the command's struct. It omits flags that have no effect, and
// those without a default whose value is zero.
func commandLine(name string, cmd any) ([]string, error) {
	k, err := kong.New(cmd, Variables())
	if err != nil {
		return nil, err
	}
	args := []string{name}
	for _, f := range k.Model.Flags {
		if f.Name == "help" || slices.Contains(inEnvironment, f.Name) || f.Target.IsZero() && !f.HasDefault || !applies(k.Model.Flags, f) {
			continue
		}
		values, err := flagValues(f)
		if err != nil {
			return nil, fmt.Errorf("--%s: %w", f.Name, err)
		}
		for _, v := range values {
			if v == "" || v[0] == '-' || f.IsBool() { // without "=" the parser would read a flag or a positional argument
				args = append(args, "--"+f.Name+"="+v)
			} else {
				args = append(args, "--"+f.Name, v)
			}
		}
	}
	return args, nil
}

// applies reports whether a flag has an effect: its help may name another one as a condition.
func applies(all []*kong.Flag, f *kong.Flag) bool {
	name, with, ok := options.Condition(f.Help)
	return !ok || with == slices.ContainsFunc(all, func(o *kong.Flag) bool { return o.Name == name && !o.Target.IsZero() })
}

// flagValues returns the texts that set a flag, one for each element of a list or map.
func flagValues(f *kong.Flag) (out []string, err error) {
	v := f.Target
	switch v.Kind() {
	case reflect.Slice:
		for i := range v.Len() {
			text, err := plainText(v.Index(i))
			if err != nil {
				return nil, err
			}
			out = append(out, kong.JoinEscaped([]string{text}, f.Tag.Sep))
		}
		return out, nil
	case reflect.Map:
		texts := map[string]string{}
		for _, key := range v.MapKeys() {
			text, err := plainText(v.MapIndex(key))
			if err != nil {
				return nil, err
			}
			texts[key.String()] = text
		}
		for _, key := range slices.Sorted(maps.Keys(texts)) {
			out = append(out, kong.JoinEscaped([]string{key + "=" + texts[key]}, f.Tag.MapSep))
		}
		return out, nil
	}
	text, err := plainText(v)
	return []string{text}, err
}

// plainText formats one value so that its flag parses it.
func plainText(v reflect.Value) (string, error) {
	if d, ok := v.Interface().(time.Duration); ok {
		return d.String(), nil
	}
	switch v.Kind() {
	case reflect.String:
		return v.String(), nil
	case reflect.Bool:
		return strconv.FormatBool(v.Bool()), nil
	case reflect.Int, reflect.Int64:
		return strconv.FormatInt(v.Int(), 10), nil
	case reflect.Float64:
		return strconv.FormatFloat(v.Float(), 'g', -1, 64), nil
	}
	return "", fmt.Errorf("a value of type %v has no text for a command line", v.Type())
}

// Variables returns the values of ${name} in the help texts and the defaults.
func Variables() kong.Vars {
	return kong.Vars{"policies": strings.Join(kvpolicy.Usage(), " | "), "shapes": models.ShapeNames(), "server": defaultServer}
}

// apiKeysEnv returns the value of SHOAL_API_KEY for these keys.
func apiKeysEnv(keys []string) string { return kong.JoinEscaped(keys, ',') }
