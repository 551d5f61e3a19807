package models

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/shoal-llm/shoal/cluster"
	"github.com/shoal-llm/shoal/internal/bench"
	"github.com/shoal-llm/shoal/internal/cli/ui"
	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/engine/tensor/kernel"
	"github.com/shoal-llm/shoal/internal/hub"
	"github.com/shoal-llm/shoal/internal/machine"
	"github.com/shoal-llm/shoal/internal/options"
	"github.com/shoal-llm/shoal/topology"
)

// ModelsCmd has the subcommands of models.
type ModelsCmd struct {
	List modelsListCmd `cmd:"" default:"withargs" help:"List the models on this machine and the memory that each needs here (default)."`
	Rm   modelsRmCmd   `cmd:"" aliases:"remove" help:"Remove models from this machine."`
}

func (c *ModelsCmd) Help() string {
	return `Lists the models on this machine that shoal pull, Python's huggingface_hub or Ollama fetched.
For each type of weights it shows the memory per node without caches, and the expected tokens
per second of one short sequence, estimated from the measured speed of this machine.

  shoal models
  shoal models --nodes 4
  shoal models rm Qwen/Qwen3-0.6B`
}

type modelsListCmd struct {
	Nodes int  `short:"n" default:"1" range:"1..64" help:"Number of node processes on this machine to calculate with, 1 to 64."`
	JSON  bool `name:"json" help:"Print the list as JSON."`
}

// ListedModel is a model on disk. Needs has an entry per type of the weights in memory.
type ListedModel struct {
	Name    string      `json:"name"`
	Ref     string      `json:"reference"`
	Format  string      `json:"format"`
	Stored  string      `json:"stored,omitempty"`
	Bytes   int64       `json:"bytes"`
	Path    string      `json:"path"`
	Problem string      `json:"problem,omitempty"`
	Needs   []modelNeed `json:"needs,omitempty"`
}

// modelNeed is the memory and the speed of a model with one type of weights.
type modelNeed struct {
	Quant     string  `json:"quant"`
	NodeBytes int64   `json:"node_bytes"`   // memory of one node, without caches
	Rate      float64 `json:"tokens_per_s"` // expected
}

// Quants are the types of weights that the list compares.
var Quants = []tensor.DType{tensor.BF16, tensor.Q8_0, tensor.Q4_0}

func (c *modelsListCmd) Run(e *ui.Env) error {
	s, err := OpenStore()
	if err != nil {
		return err
	}
	defer s.Close()
	list, err := s.List()
	if err != nil {
		return err
	}
	out := make([]ListedModel, len(list))
	configs := make([]*model.Config, len(list))
	var largest *model.Config
	for i, m := range list {
		out[i] = ListedModel{Name: m.Name, Ref: m.Ref.String(), Format: m.Format, Bytes: m.Bytes, Path: m.Path, Problem: m.Problem}
		if m.Problem != "" || m.Format == "adapter" {
			continue
		}
		config, stored, err := checkpoint.ReadConfig(m.Path)
		if err != nil {
			out[i].Problem = ui.PlainError(err)
			continue
		}
		out[i].Stored, configs[i] = stored, &config
		if largest == nil || config.Hidden*config.Layers > largest.Hidden*largest.Layers {
			largest = &config
		}
	}
	if largest != nil {
		measured := c.measured(e, largest)
		for i, config := range configs {
			if config != nil {
				out[i].Needs = c.needs(out[i].Name, config, measured)
			}
		}
	}
	if c.JSON {
		return ui.PrintJSON(e.Stdout, out)
	}
	printModels(e.Stdout, out, s.Settings(), c.Nodes)
	return nil
}

// measured returns the measured speeds of the nodes on this machine, for plain (false) and
// quantized (true) weights. A measurement is cached.
func (c *modelsListCmd) measured(e *ui.Env, config *model.Config) map[bool][]topology.Node {
	out := map[bool][]topology.Node{}
	for _, dt := range []tensor.DType{tensor.BF16, tensor.Q8_0} {
		speeds := machine.MeasureSpeeds(e.Ctx, machine.SpeedsConfig{Dir: WeightsCacheDir(""), Nodes: c.Nodes, Sockets: c.Nodes, Model: config,
			Weights: dt, Build: cluster.Build(), Logger: slog.New(slog.DiscardHandler)}, nil)
		nodes := make([]topology.Node, c.Nodes)
		for i := range nodes {
			nodes[i].Read, nodes[i].Syncs, nodes[i].Products = speeds.Read, speeds.Syncs, speeds.Products
		}
		out[kernel.Quantized(dt)] = nodes
	}
	return out
}

// needs returns the memory and the speed of a model, or nil if the planner cannot split it.
func (c *modelsListCmd) needs(name string, config *model.Config, measured map[bool][]topology.Node) (out []modelNeed) {
	for _, dt := range Quants {
		p, err := bench.RunPlan(bench.PlanModelOf(name, config), bench.PlanOptions{Sockets: c.Nodes, Weights: dt, KV: tensor.BF16,
			Mapping: topology.Gather, Rows: 512, Contexts: []int{min(4096, config.MaxPositions)}, Ratio: 4})
		if err != nil {
			return nil
		}
		out = append(out, modelNeed{dt.String(), p.WeightBytes + p.EmbeddingBytes + p.WorkspaceBytes,
			bench.ExpectedRate(config, measured[kernel.Quantized(dt)], dt)})
	}
	return out
}

func printModels(w io.Writer, list []ListedModel, s hub.Settings, nodes int) {
	if len(list) == 0 {
		fmt.Fprintf(w, "no models in %s or %s; to fetch one, run shoal pull Qwen/Qwen3-0.6B\n", s.Cache, s.ModelsDir)
		return
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprint(t, "MODEL\tFORMAT\tTYPE\tSIZE")
	for _, q := range Quants {
		fmt.Fprintf(t, "\t%s", strings.ToUpper(q.String()))
	}
	fmt.Fprintln(t, "\tPATH")
	for _, m := range list {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s", m.Ref, cmp.Or(m.Format, "-"), cmp.Or(m.Stored, "-"), options.SizeText(m.Bytes))
		for i := range Quants {
			if i < len(m.Needs) {
				fmt.Fprintf(t, "\t%s, %s/s", options.SizeText(m.Needs[i].NodeBytes), rateText(m.Needs[i].Rate))
			} else {
				fmt.Fprint(t, "\t-")
			}
		}
		fmt.Fprintf(t, "\t%s\n", m.Path)
	}
	t.Flush()
	for _, m := range list {
		if m.Problem != "" {
			fmt.Fprintf(w, "%s: %s\n", m.Ref, m.Problem)
		}
	}
	fmt.Fprintf(w, "\nBF16, Q8_0, Q4_0 (--quant): memory per node without caches, and expected tokens per second, on %s on this machine.\n",
		ui.Plural(nodes, "node"))
}

// rateText formats a rate: with one decimal below 10, and as an integer from 10 on.
func rateText(x float64) string {
	if x >= 10 {
		return fmt.Sprintf("%.0f", x)
	}
	return fmt.Sprintf("%.1f", x)
}

type modelsRmCmd struct {
	Model []string `arg:"" help:"Models as the list names them; org/name removes all of its revisions and files."`
}

func (c *modelsRmCmd) Run(e *ui.Env) error {
	var refs []hub.Ref
	for _, word := range c.Model {
		r, err := hub.Parse(word)
		if err == nil && r.Kind == hub.Local {
			err = errors.New("shoal does not remove a path; use a name from 'shoal models'")
		}
		if err != nil {
			return fmt.Errorf("%s: %w", word, err)
		}
		refs = append(refs, r)
	}
	s, err := OpenStore()
	if err != nil {
		return err
	}
	defer s.Close()
	for _, r := range slices.Compact(refs) {
		freed, err := s.Remove(r)
		if err != nil {
			return err
		}
		fmt.Fprintf(e.Stdout, "%s is removed: %s are free\n", r, options.SizeText(freed))
	}
	return nil
}

// WeightsCacheDir returns the folder of quantized weights that --weights-cache names, or "" for none.
func WeightsCacheDir(word string) string {
	switch word {
	case "off":
		return ""
	case "":
		cache, err := os.UserCacheDir()
		if err != nil {
			return "" // without a home directory only --weights-cache enables it
		}
		return filepath.Join(cache, "shoal", "weights")
	}
	return word
}
