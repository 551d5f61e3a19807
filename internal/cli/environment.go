package cli

import (
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
	"github.com/shoal-llm/shoal/internal/security"
)

// laboratory is the command whose flags never share a variable with flags of other commands.
const laboratory = "lab"

// environmentVariables gives the flags their variables. Each variable has one meaning:
//
//   - SHOAL_COMMAND_FLAG sets a flag of one command: SHOAL_UP_NODES, SHOAL_STORE_ADD_SERVER.
//   - SHOAL_FLAG sets a flag that several commands share, which means that they embed the struct
//     that declares it: SHOAL_KV_MEMORY. A tag env:"SHOAL_FLAG" does this for structs that differ.
//
// A flag of one command also keeps the name SHOAL_FLAG of earlier versions if no other flag has
// that name. If one has, the variable is retired: an error that names the new one. A variable that
// sets the flags of other commands with the same name is foreign: an error too, unless the command
// line sets this flag.
func environmentVariables(retired, foreign map[*kong.Flag]string) kong.Option {
	return kong.OptionFunc(func(k *kong.Kong) error {
		if err := kong.PostBuild(func(k *kong.Kong) error { return nameVariables(k.Model, retired, foreign) }).Apply(k); err != nil {
			return err
		}
		return kong.ValueFormatter(documented).Apply(k)
	})
}

// environment returns the variable of a flag to document, or "". It is the last one.
func environment(f *kong.Value) string {
	if len(f.Tag.Envs) == 0 {
		return ""
	}
	return f.Tag.Envs[len(f.Tag.Envs)-1]
}

// documented formats the help of a flag with the variable to document.
func documented(v *kong.Value) string {
	if len(v.Tag.Envs) > 1 {
		value, tag := *v, *v.Tag
		tag.Envs = []string{environment(v)}
		value.Tag, v = &tag, &value
	}
	return kong.DefaultHelpValueFormatter(v)
}

// given reports whether the command line or the environment sets a flag.
func given(ctx *kong.Context, f *kong.Flag) bool {
	return slices.ContainsFunc(ctx.Path, func(p *kong.Path) bool { return p.Flag == f }) || slices.ContainsFunc(f.Tag.Envs, isSet)
}

func isSet(variable string) bool {
	_, set := os.LookupEnv(variable)
	return set
}

// rowID identifies the row of the table of options that declares a flag: a field of a struct.
type rowID struct {
	in    reflect.Type
	field int
}

// rowsOf adds the rows that declare the flags of a command, by the addresses of their values.
func rowsOf(v reflect.Value, out map[any]rowID) {
	for i := range v.NumField() {
		f := v.Type().Field(i)
		_, embed := f.Tag.Lookup("embed")
		switch {
		case f.Anonymous || embed:
			rowsOf(v.Field(i), out)
		case f.IsExported():
			out[v.Field(i).Addr().Interface()] = rowID{v.Type(), i}
		}
	}
}

// nameVariables sets the variables of all flags. It adds the names that a flag had to retired, and
// those that set flags of other commands only to foreign.
func nameVariables(app *kong.Application, retired, foreign map[*kong.Flag]string) error {
	type named struct {
		flag        *kong.Flag
		row         rowID
		long, short string
		tagged      bool // a tag of the row gives the short name
	}
	var all []named
	commands := map[rowID][]string{} // top-level commands outside the laboratory that have a row
	rows := map[string][]rowID{}     // rows by their short name
	shared := map[string][]rowID{}   // those that several commands have
	var visit func(n *kong.Node)
	visit = func(n *kong.Node) {
		declared := map[any]rowID{}
		rowsOf(n.Target, declared)
		for _, f := range n.Flags {
			if f.Hidden || f.Name == "help" || slices.Equal(f.Envs, []string{"-"}) {
				f.Envs, f.Tag.Envs = nil, nil
				continue
			}
			x := named{flag: f, row: declared[f.Target.Addr().Interface()], short: variable("", f.Name), tagged: len(f.Envs) > 0}
			if x.tagged {
				x.short = f.Envs[0]
				if plain := variable("", f.Name); plain != x.short && plain != security.EnvKey { // EnvKey has a value, its flag a file
					retired[f] = plain
				}
			}
			x.long = variable(pathOf(n), strings.TrimPrefix(x.short, prefix))
			all = append(all, x)
			if top := topCommand(n); top != nil && top.Name != laboratory {
				commands[x.row] = addOnce(commands[x.row], top.Name)
			}
			rows[x.short] = addOnce(rows[x.short], x.row)
		}
		for _, c := range n.Children {
			visit(c)
		}
	}
	visit(app.Node)
	for _, x := range all {
		if x.tagged || len(commands[x.row]) > 1 {
			shared[x.short] = addOnce(shared[x.short], x.row)
		}
		if !x.tagged && len(commands[x.row]) > 1 && len(shared[x.short]) > 1 {
			return fmt.Errorf("%s would have several meanings, from %v: give their rows a tag env", x.short, shared[x.short])
		}
	}
	for _, x := range all {
		names := []string{x.long} // the first that is set wins, the last is documented
		switch owners := shared[x.short]; {
		case x.short == x.long:
		case slices.Contains(owners, x.row):
			names = append(names, x.short)
		case len(owners) > 0:
			foreign[x.flag] = x.short
		case len(rows[x.short]) == 1:
			names = []string{x.short, x.long}
		default:
			retired[x.flag] = x.short
		}
		x.flag.Tag.Envs = names
	}
	return nil
}

func addOnce[T comparable](list []T, v T) []T {
	if slices.Contains(list, v) {
		return list
	}
	return append(list, v)
}

const prefix = "SHOAL_"

// variable returns the name of the variable for a flag of a command.
func variable(command, flag string) string {
	return prefix + strings.ToUpper(strings.NewReplacer(" ", "_", "-", "_").Replace(strings.TrimSpace(command+" "+flag)))
}
