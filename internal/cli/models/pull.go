package models

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/shoal-llm/shoal/internal/cli/ui"
	"github.com/shoal-llm/shoal/internal/hub"
	"github.com/shoal-llm/shoal/internal/options"
)

// PullCmd is the command pull.
type PullCmd struct {
	Model []string `arg:"" help:"Models to fetch, as org/name or ollama://name."`
	JSON  bool     `name:"json" help:"Print name, path, bytes and files of each as JSON."`
}

func (c *PullCmd) Help() string {
	return `Fetches models and prints their paths. A pull that was stopped continues on the next call.

` + strings.TrimPrefix(hub.Forms, "a model is one of\n") + `

  shoal pull Qwen/Qwen3-0.6B
  shoal pull bartowski/Llama-3.2-1B-Instruct-GGUF:Q4_K_M
  shoal pull ollama://qwen3:0.6b

Files of a hub are stored in the folder of Python's huggingface_hub, and both programs use them.
Environment variables: HF_ENDPOINT, HF_TOKEN, HF_HOME, HF_HUB_CACHE, HF_HUB_OFFLINE, HTTPS_PROXY, SHOAL_MODELS. See
docs/pull.md.`
}

// pulledModel is an entry of the output with --json.
type pulledModel struct {
	Name  string `json:"name"`
	Path  string `json:"path"`
	Bytes int64  `json:"bytes"`
	Files int    `json:"files"`
}

func (c *PullCmd) Run(e *ui.Env) error {
	var refs []hub.Ref
	for _, word := range c.Model {
		if at, err := onDisk(word); err != nil || at != "" {
			return errors.Join(fmt.Errorf("%s is already on this machine, so there is nothing to pull", word), err)
		}
		r, err := hub.Parse(word)
		if err != nil {
			return err
		}
		refs = append(refs, r)
	}
	s, err := OpenStore()
	if err != nil {
		return err
	}
	defer s.Close()
	out := []pulledModel{}
	for _, r := range refs {
		p := newPullProgress(e)
		m, err := s.Pull(e.Ctx, r, p.show)
		p.end()
		if err != nil {
			return err
		}
		out = append(out, pulledModel{m.Name, m.Path, m.Bytes, m.Files})
		if !c.JSON {
			fmt.Fprintf(e.Stdout, "%s, %s, is in %s\n", m.Name, options.SizeText(m.Bytes), m.Path)
		}
	}
	if c.JSON {
		return ui.PrintJSON(e.Stdout, out)
	}
	return nil
}

// pullProgress shows the progress of a pull. A terminal gets a bar, other outputs a line every few
// seconds. A pull of less than half a second shows nothing.
type pullProgress struct {
	e            *ui.Env
	began, shown time.Time
	open         bool // the terminal shows a bar
}

func newPullProgress(e *ui.Env) *pullProgress {
	now := time.Now()
	return &pullProgress{e: e, began: now, shown: now}
}

func (p *pullProgress) show(g hub.Progress) {
	now := time.Now()
	switch {
	case ui.IsTerminal(p.e.Stderr):
		if p.open || now.Sub(p.began) >= ui.BarAfter {
			p.open = true
			ui.ShowStatus(p.e.Stderr, pullBar(g))
		}
	case now.Sub(p.shown) >= ui.LineInterval:
		p.shown = now
		fmt.Fprintln(p.e.Stderr, "pulling "+g.Model+": "+pullText(g))
	}
}

func (p *pullProgress) end() {
	if p.open {
		ui.ShowStatus(p.e.Stderr, "")
		p.open = false
	}
}

// pullBar formats the progress as one line of at most 100 columns.
func pullBar(g hub.Progress) string {
	name := g.Model
	if r := []rune(name); len(r) > 30 {
		name = "..." + string(r[len(r)-27:])
	}
	return ui.BarText(name, g.Done, g.Total) + " " + pullText(g)
}

// pullText describes the progress of a pull.
func pullText(g hub.Progress) string {
	if g.Total == 0 {
		if g.Waiting != "" {
			return g.Waiting
		}
		return "asking for the list of files"
	}
	text := fmt.Sprintf("%d%% of %s", ui.Percent(g.Done, g.Total), options.SizeText(g.Total))
	switch {
	case g.Waiting != "":
		text += ", " + g.Waiting
	case g.Rate > 0:
		text += fmt.Sprintf(", %s/s", options.SizeText(int64(g.Rate)))
		if g.Left > 0 {
			text += fmt.Sprintf(", %s left", g.Left)
		}
	}
	return text
}
