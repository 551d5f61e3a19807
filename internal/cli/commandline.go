package cli

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/shoal-llm/shoal/cluster"
	"github.com/shoal-llm/shoal/internal/cli/ui"
)

// commandLine parses command lines with Kong's model of the commands. It carries out the steps of
// [kong.Kong.Parse] and [kong.Context.Run] itself, because those look up methods by name. The linker
// then keeps every exported method of every type: 6 MB of the program.
type commandLine struct {
	*kong.Kong
	env *ui.Env
	// variables that a flag no longer has, and those of other commands; see environmentVariables
	retired, foreign map[*kong.Flag]string
}

// errShown is the result of a command line that asked for --help or --version.
var errShown = errors.New("the help or the version was printed")

// Parse parses the arguments. It also returns the context of most wrong command lines.
func (l *commandLine) Parse(args []string) (*kong.Context, error) {
	ctx, err := kong.Trace(l.Kong, args)
	if err != nil {
		return nil, err
	}
	steps := []func(*kong.Context) error{func(ctx *kong.Context) error { return ctx.Error }, l.showHelp, (*kong.Context).Reset,
		l.checkVariables, l.readConfig, (*kong.Context).Resolve, apply, checkEnums, checkMissing}
	for _, step := range steps {
		if err := step(ctx); err != nil {
			return ctx, err
		}
	}
	return ctx, nil
}

func apply(ctx *kong.Context) error {
	_, err := ctx.Apply()
	return err
}

// showHelp carries out --help and --version, and then returns errShown.
func (l *commandLine) showHelp(ctx *kong.Context) error {
	for _, p := range ctx.Path {
		switch {
		case p.Flag == nil:
		case p.Flag == l.Model.HelpFlag:
			return errors.Join(ctx.PrintUsage(false), errShown)
		case p.Flag.Target.Type() == reflect.TypeFor[versionFlag]():
			fmt.Fprintln(l.Stdout, "shoal "+cluster.Build())
			return errShown
		}
	}
	return nil
}

// checkVariables refuses an environment variable that has had several meanings, or that sets other
// commands only.
func (l *commandLine) checkVariables(ctx *kong.Context) error {
	for _, f := range ctx.Flags() {
		if name := l.retired[f]; name != "" && isSet(name) && !slices.ContainsFunc(f.Tag.Envs, isSet) {
			return fmt.Errorf("%s has had several meanings: set %s, or remove it", name, environment(f.Value))
		}
		if name := l.foreign[f]; name != "" && isSet(name) && !given(ctx, f) {
			return fmt.Errorf("%s sets --%s of other commands, not of %s: set %s, or remove %s", name, f.Name,
				strings.TrimSpace(pathOf(ctx.Selected())), environment(f.Value), name)
		}
	}
	return nil
}

// checkEnums checks the flags and arguments that allow certain values only.
func checkEnums(ctx *kong.Context) error {
	for _, p := range ctx.Path {
		n := p.Node()
		if n == nil {
			continue
		}
		for _, v := range n.Values() {
			if text := fmt.Sprint(v.Target); v.Enum != "" && (v.Set || !v.Required) && !slices.Contains(v.EnumSlice(), text) {
				return fmt.Errorf("%s must be one of %s, not %q", v.ShortSummary(), strings.Join(choices(v), ", "), text)
			}
		}
	}
	return nil
}

// checkMissing checks that the command line has a command, and its required flags and arguments.
func checkMissing(ctx *kong.Context) error {
	var missing []string
	for _, f := range ctx.Flags() {
		if f.Required && !f.Set {
			missing = append(missing, f.Summary())
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("missing flag: %s", strings.Join(missing, ", "))
	}
	n, given := ctx.Selected(), 0
	if n == nil {
		n = ctx.Model.Node
	}
	for _, c := range n.Children {
		if !c.Hidden {
			missing = append(missing, c.Name)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("missing command: one of %s", strings.Join(missing, ", "))
	}
	for _, p := range ctx.Path {
		if p.Positional != nil {
			given = p.Positional.Position + 1
		}
	}
	for _, v := range n.Positional[given:] {
		if v.Required {
			missing = append(missing, "<"+v.Name+">")
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("missing argument: %s", strings.Join(missing, " "))
	}
	return nil
}

// runCommand runs the command of a parsed command line.
func (l *commandLine) runCommand(ctx *kong.Context) error {
	switch c := ctx.Selected().Target.Addr().Interface().(type) {
	case interface{ Run(e *ui.Env) error }:
		return c.Run(l.env)
	case interface {
		Run(e *ui.Env, k *kong.Context) error
	}:
		return c.Run(l.env, ctx)
	}
	return fmt.Errorf("the command%s has no method Run", pathOf(ctx.Selected()))
}
