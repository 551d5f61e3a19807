package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
	"go.yaml.in/yaml/v3"

	"github.com/shoal-llm/shoal/internal/cli/ui"
)

// configFlag is a YAML file of flags. The order of precedence is: the command line, the
// environment, the section of the file with the name of the command, the top level of the
// file, the default.
type configFlag string

const configHelp = `YAML file with flags: "kv-memory: 4GiB" sets --kv-memory 4GiB. Flags below "node:" apply to that command only (docs/config.md).`

// readConfig reads the file that the command line or the environment names.
func (l *commandLine) readConfig(ctx *kong.Context) error {
	var path configFlag
	for _, f := range l.Model.Flags {
		if p, ok := ctx.FlagValue(f).(configFlag); ok {
			path = p
		}
	}
	if path == "" {
		return nil
	}
	// The file may be a pipe, which blocks until another process writes to it.
	text, err := ui.Await(l.env.Ctx, func() ([]byte, error) { return ui.ReadSmall(string(path)) }, func() {})
	if err != nil {
		return fmt.Errorf("--config: %w", err)
	}
	values, err := parseConfig(text, l.Model, topCommand(ctx.Selected()))
	if err != nil {
		return fmt.Errorf("--config %s: %w", path, err)
	}
	ctx.AddResolver(kong.ResolverFunc(func(_ *kong.Context, _ *kong.Path, flag *kong.Flag) (any, error) {
		v, ok := values[flag.Name]
		if !ok || slices.ContainsFunc(flag.Tag.Envs, isSet) {
			return nil, nil
		}
		text, err := flagText(v, flag)
		if err == nil { // parse the value here, where the line number is known
			err = flag.Parse(kong.Scan().PushTyped(text, kong.FlagValueToken), reflect.New(flag.Target.Type()).Elem())
		}
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", path, v.Line, err)
		}
		return text, nil
	}))
	return nil
}

// topCommand returns the top-level command, such as store for store add, or nil if there is none.
func topCommand(n *kong.Node) *kong.Node {
	for n != nil && n.Parent != nil && n.Parent.Parent != nil {
		n = n.Parent
	}
	return n
}

// parseConfig returns the flags that a file sets for a command. A key at the top level must be a
// flag of any command. A key in a section must be a flag of that command.
func parseConfig(text []byte, app *kong.Application, command *kong.Node) (map[string]*yaml.Node, error) {
	var doc yaml.Node
	d := yaml.NewDecoder(bytes.NewReader(text))
	switch err := d.Decode(&doc); {
	case errors.Is(err, io.EOF): // empty
		return nil, nil
	case err != nil:
		return nil, err
	}
	if d.Decode(new(yaml.Node)) == nil {
		return nil, errors.New("holds several YAML documents; want one")
	}
	values := map[string]*yaml.Node{}
	top, err := entries(doc.Content[0])
	if err != nil {
		return nil, err
	}
	for _, p := range top {
		if childNamed(app.Node, p.key) != nil && p.value.Kind == yaml.MappingNode {
			continue
		}
		if !hasFlag(app.Node, p.key) {
			return nil, fmt.Errorf("line %d: no command has a flag --%s, and no command has that name; see `shoal --help`", p.line, p.key)
		}
		values[p.key] = p.value
	}
	for _, p := range top { // sections override the top level
		if values[p.key] != nil {
			continue
		}
		section := childNamed(app.Node, p.key)
		inner, err := entries(p.value)
		if err != nil {
			return nil, err
		}
		for _, q := range inner {
			if !hasFlag(section, q.key) {
				return nil, fmt.Errorf("line %d: %s has no flag --%s; see `shoal %s --help`", q.line, p.key, q.key, p.key)
			}
			if section == command {
				values[q.key] = q.value
			}
		}
	}
	return values, nil
}

// childNamed returns the command below n with a name or an alias, or nil.
func childNamed(n *kong.Node, name string) *kong.Node {
	for _, c := range n.Children {
		if c.Name == name || slices.Contains(c.Aliases, name) {
			return c
		}
	}
	return nil
}

type entry struct {
	key   string
	line  int
	value *yaml.Node
}

// entries returns the entries of a mapping. It refuses a repeated key.
func entries(n *yaml.Node) (out []entry, err error) {
	if n.Kind != yaml.MappingNode {
		return nil, fmt.Errorf("line %d: want lines of the form \"flag: value\"", n.Line)
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		if v.Kind == yaml.AliasNode {
			v = v.Alias
		}
		if k.Kind != yaml.ScalarNode || seen[k.Value] {
			return nil, fmt.Errorf("line %d: %q is repeated, or is not a name", k.Line, k.Value)
		}
		seen[k.Value] = true
		out = append(out, entry{k.Value, k.Line, v})
	}
	return out, nil
}

// hasFlag reports whether a command or a subcommand has the flag. It excludes --help, --version and
// --config.
func hasFlag(n *kong.Node, name string) bool {
	return !slices.Contains([]string{"help", "version", "config"}, name) &&
		slices.ContainsFunc(n.Flags, func(f *kong.Flag) bool { return f.Name == name }) ||
		slices.ContainsFunc(n.Children, func(c *kong.Node) bool { return hasFlag(c, name) })
}

// flagText formats a value as on the command line.
func flagText(n *yaml.Node, flag *kong.Flag) (string, error) {
	var parts []string
	sep := flag.Tag.Sep
	switch n.Kind {
	case yaml.ScalarNode:
		if n.Tag == "!!null" {
			return "", errors.New("has no value")
		}
		return n.Value, nil
	case yaml.SequenceNode:
		if !flag.IsSlice() {
			return "", errors.New("takes one value, not a list")
		}
		for _, v := range n.Content {
			parts = append(parts, v.Value)
		}
	default:
		if !flag.IsMap() {
			return "", errors.New("takes a value, not names with values")
		}
		sep = flag.Tag.MapSep
		inner, err := entries(n)
		if err != nil {
			return "", err
		}
		for _, p := range inner {
			parts = append(parts, p.key+"="+p.value.Value)
		}
	}
	for i, p := range parts {
		if p == "" || n.Kind != yaml.ScalarNode && sep < 0 {
			return "", errors.New("takes plain values")
		}
		parts[i] = strings.ReplaceAll(p, string(sep), `\`+string(sep))
	}
	return strings.Join(parts, string(sep)), nil
}
