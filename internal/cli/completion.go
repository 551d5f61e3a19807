package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/shoal-llm/shoal/internal/cli/ui"
)

// completionCmd prints a script that completes commands, flags and their values in a shell.
type completionCmd struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"Shell: bash, zsh or fish."`
}

func (completionCmd) Help() string {
	return `  shoal completion bash > ~/.local/share/bash-completion/completions/shoal
  shoal completion zsh > "${fpath[1]}/_shoal"
  shoal completion fish > ~/.config/fish/completions/shoal.fish`
}

func (c *completionCmd) Run(e *ui.Env, k *kong.Context) error {
	all := words(k.Model)
	switch c.Shell {
	case "zsh": // bashcompinit reads the script for bash
		fmt.Fprint(e.Stdout, "#compdef shoal\nautoload -U +X bashcompinit && bashcompinit\n")
		fallthrough
	case "bash":
		fmt.Fprint(e.Stdout, bashCompletion(all))
	case "fish":
		fmt.Fprint(e.Stdout, fishCompletion(all))
	}
	return nil
}

// commandWords are the words that can follow a command.
type commandWords struct {
	path   string // of the command without the program name, such as "store add"
	help   string
	below  []string // subcommands
	flags  []*kong.Flag
	values []string // allowed values of its first argument
}

// words returns the words of every command; the program itself is first.
func words(app *kong.Application) (out []commandWords) {
	var visit func(n *kong.Node, path string)
	visit = func(n *kong.Node, path string) {
		w := commandWords{path: path, help: n.Help}
		for _, group := range n.AllFlags(true) {
			w.flags = append(w.flags, group...)
		}
		if len(n.Positional) > 0 {
			w.values = choices(n.Positional[0])
		}
		at := len(out)
		out = append(out, w)
		for _, c := range n.Children {
			if !c.Hidden {
				out[at].below = append(out[at].below, c.Name)
				visit(c, strings.TrimSpace(path+" "+c.Name))
			}
		}
	}
	visit(app.Node, "")
	return out
}

// choices returns the allowed values of a flag or an argument that has an enum.
func choices(v *kong.Value) []string {
	return slices.DeleteFunc(v.EnumSlice(), func(s string) bool { return s == "" })
}

func bashCompletion(all []commandWords) string {
	var b strings.Builder
	b.WriteString("_shoal() {\n\tlocal cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} at= words= w\n")
	b.WriteString("\tfor w in \"${COMP_WORDS[@]:1:COMP_CWORD-1}\"; do\n\t\tcase \"$at${at:+ }$w\" in\n")
	for _, c := range all[1:] {
		fmt.Fprintf(&b, "\t\t%q) at=%q ;;\n", c.path, c.path)
	}
	b.WriteString("\t\tesac\n\tdone\n\tcase \"$at $prev\" in\n")
	for _, c := range all {
		for _, f := range c.flags {
			if v := choices(f.Value); len(v) > 0 {
				fmt.Fprintf(&b, "\t%q) words=%q ;;\n", c.path+" --"+f.Name, strings.Join(v, " "))
			}
		}
	}
	b.WriteString("\tesac\n\tif [ -z \"$words\" ]; then\n\t\tcase $at in\n")
	for _, c := range all {
		list := slices.Concat(c.below, c.values)
		for _, f := range c.flags {
			list = append(list, "--"+f.Name)
		}
		fmt.Fprintf(&b, "\t\t%q) words=%q ;;\n", c.path, strings.Join(list, " "))
	}
	b.WriteString("\t\tesac\n\tfi\n\tCOMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))\n}\ncomplete -o default -F _shoal shoal\n")
	return b.String()
}

func fishCompletion(all []commandWords) string {
	var b strings.Builder
	quoted := func(text string) string {
		return "'" + strings.NewReplacer(`\`, `\\`, "'", `\'`).Replace(text) + "'"
	}
	help := map[string]string{}
	for _, c := range all {
		help[c.path] = c.help
	}
	for _, c := range all {
		when := "__fish_use_subcommand"
		if c.path != "" {
			var seen []string
			for _, w := range strings.Fields(c.path) {
				seen = append(seen, "__fish_seen_subcommand_from "+w)
			}
			when = strings.Join(seen, "; and ")
		}
		for _, n := range c.below {
			fmt.Fprintf(&b, "complete -c shoal -n %s -a %s -d %s\n", quoted(when), n, quoted(help[strings.TrimSpace(c.path+" "+n)]))
		}
		if len(c.values) > 0 {
			fmt.Fprintf(&b, "complete -c shoal -n %s -f -a %s\n", quoted(when), quoted(strings.Join(c.values, " ")))
		}
		for _, f := range c.flags {
			fmt.Fprintf(&b, "complete -c shoal -n %s -l %s -d %s", quoted(when), f.Name, quoted(firstSentence(f.Help)))
			if v := choices(f.Value); len(v) > 0 {
				fmt.Fprintf(&b, " -x -a %s", quoted(strings.Join(v, " ")))
			} else if !f.IsBool() {
				b.WriteString(" -r")
			}
			b.WriteByte('\n')
		}
	}
	return b.String()
}

func firstSentence(text string) string {
	first, _, _ := strings.Cut(text, ". ")
	return strings.TrimSuffix(first, ".")
}
