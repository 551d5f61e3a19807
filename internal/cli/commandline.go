package cli

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"github.com/shoal-llm/shoal/internal/engine/kvcache"
)

// inEnvironment are the flags whose values [commandLine] leaves out, since every user of the
// machine reads a command line: their values go into the environment of a process.
var inEnvironment = []string{"api-key"}

// commandLine writes a command with all of its flags, so that another process of this program
// gets the same values. cmd points to the command's struct. A flag without a default is left
// out while its value is zero.
func commandLine(name string, cmd any) ([]string, error) {
	k, err := kong.New(cmd, variables())
	if err != nil {
		return nil, err
	}
	args := []string{name}
	for _, f := range k.Model.Flags {
		if f.Name == "help" || slices.Contains(inEnvironment, f.Name) || f.Target.IsZero() && !f.HasDefault {
			continue
		}
		values, err := flagValues(f)
		if err != nil {
			return nil, fmt.Errorf("--%s: %w", f.Name, err)
		}
		for _, v := range values {
			if v == "" || v[0] == '-' || f.IsBool() { // else it would be taken for a flag, or for a text
				args = append(args, "--"+f.Name+"="+v)
			} else {
				args = append(args, "--"+f.Name, v)
			}
		}
	}
	return args, nil
}

// flagValues are the texts that give a flag its value, one for each element of a list or map.
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

// plainText writes one value so that its flag reads it again.
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

// variables are what the help of flags refers to.
func variables() kong.Vars {
	return kong.Vars{"policies": strings.Join(kvcache.Usage(), " | "), "shapes": shapeNames(), "version": versionFlag(), "config": configHelp, "server": defaultServer, "answer": strconv.Itoa(defaultAnswer)}
}

// apiKeysEnv is the value of SHOAL_API_KEY that gives a process these keys.
func apiKeysEnv(keys []string) string { return kong.JoinEscaped(keys, ',') }
