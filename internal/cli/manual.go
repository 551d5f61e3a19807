package cli

import (
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/shoal-llm/shoal/internal/cli/launch"
	"github.com/shoal-llm/shoal/internal/cli/ui"
)

// manCmd writes the help of all commands as one page.
type manCmd struct {
	launch.ServerFlags
	Markdown bool `help:"Write docs/reference.md instead of the manual page."`
	HTTP     bool `name:"http" help:"Write docs/http.md: the routes of a running server, from its /openapi.json."`
}

func (manCmd) Help() string {
	return "Writes shoal(1) to standard output: shoal man > shoal.1, man ./shoal.1"
}

func (c *manCmd) Run(e *ui.Env, k *kong.Context) error {
	if c.HTTP {
		return c.writeRoutes(e)
	}
	var m manual = &roff{w: e.Stdout}
	if c.Markdown {
		m = &markdown{w: e.Stdout}
	}
	return writeManual(m, k.Model)
}

// manual is an output format of the page. Its methods get unescaped text.
type manual interface {
	begin(summary, text string)
	// command starts the section of a command: its usage, a summary of one line, and details.
	command(usage, summary, text string)
	flag(f *kong.Flag)
	end() error
}

func writeManual(m manual, app *kong.Application) error {
	m.begin("serve a large language model cut across several machines", app.Help)
	for _, f := range app.Flags {
		m.flag(f)
	}
	for _, n := range app.Leaves(true) {
		usage := "shoal" + pathOf(n)
		if len(n.Aliases) > 0 {
			usage += " (" + strings.Join(n.Aliases, ", ") + ")"
		}
		for _, p := range n.Positional {
			usage += " " + p.Summary()
		}
		m.command(usage, n.Help, n.Detail)
		for _, group := range n.AllFlags(true) {
			for _, f := range group {
				if !slices.Contains(app.Flags, f) {
					m.flag(f)
				}
			}
		}
	}
	return m.end()
}

// chunks splits a text into paragraphs and blocks of indented lines, which stay verbatim.
func chunks(text string) (out []chunkOfText) {
	for line := range strings.Lines(strings.TrimSpace(text) + "\n") {
		line = strings.TrimRight(line, "\n")
		code := strings.HasPrefix(line, "  ")
		last := len(out) - 1
		switch {
		case last >= 0 && out[last].text != "" && (out[last].code == code && line != "" || out[last].code && line == ""):
			out[last].text += "\n" + line
		default:
			out = append(out, chunkOfText{line, code})
		}
	}
	return slices.DeleteFunc(out, func(c chunkOfText) bool { return strings.TrimSpace(c.text) == "" })
}

type chunkOfText struct {
	text string
	code bool
}

// roff is the manual page, in man(7)'s macros.
type roff struct {
	w        io.Writer
	err      error
	commands bool
}

func (r *roff) printf(format string, args ...any) {
	if r.err == nil {
		_, r.err = fmt.Fprintf(r.w, format, args...)
	}
}

// commaInWord matches the places where a long word, such as the parameters of a policy, can
// be broken.
var commaInWord = regexp.MustCompile(`,(\S)`)

// escaped escapes a text for roff.
func escaped(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`, "'", `\(aq`, "`", `\(ga`, "~", `\(ti`, "^", `\(ha`).Replace(text)
	text = commaInWord.ReplaceAllString(text, `,\:$1`)
	lines := strings.Split(text, "\n")
	for i, l := range lines {
		if strings.HasPrefix(l, ".") {
			lines[i] = `\&` + l
		}
	}
	return strings.Join(lines, "\n")
}

func (r *roff) text(text string) {
	for _, c := range chunks(text) {
		if c.code {
			r.printf(".PP\n.nf\n%s\n.fi\n", escaped(strings.TrimRight(c.text, "\n")))
		} else {
			r.printf(".PP\n%s\n", escaped(c.text))
		}
	}
}

func (r *roff) begin(summary, text string) {
	r.printf(".TH SHOAL 1\n.nh\n.ad l\n.SH NAME\nshoal \\- %s\n.SH SYNOPSIS\n.B shoal\n.I command\n[\\fIflags\\fR]\n.SH DESCRIPTION\n",
		escaped(summary))
	r.text(text)
	r.printf(".SH FLAGS OF EVERY COMMAND\n")
}

func (r *roff) command(usage, summary, text string) {
	if !r.commands {
		r.printf(".SH COMMANDS\n")
		r.commands = true
	}
	r.printf(".SS %s\n%s\n", escaped(usage), escaped(summary))
	r.text(text)
}

func (r *roff) flag(f *kong.Flag) {
	r.printf(".TP\n.B %s\n%s", escaped(f.String()), escaped(f.Help))
	if name := environment(f.Value); name != "" {
		r.printf(" [%s]", escaped(name))
	}
	r.printf("\n")
}

func (r *roff) end() error { return r.err }
