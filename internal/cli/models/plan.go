package models

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/shoal-llm/shoal/internal/bench"
	"github.com/shoal-llm/shoal/internal/cli/ui"
	"github.com/shoal-llm/shoal/internal/engine/lora"
	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/modelfile"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/hub"
	"github.com/shoal-llm/shoal/internal/options"
	"github.com/shoal-llm/shoal/topology"
)

// PlanCmd is the command plan.
type PlanCmd struct {
	Model   string `short:"m" default:"deepseek-r1" help:"Folder with a config.json, or name of a public model; an unknown name lists them."`
	Nodes   int    `default:"16" help:"Nodes of the cluster, 1 to 256."`
	Memory  int64  `type:"size" default:"64GB" help:"Memory per node, for weights, caches and activations."`
	Quant   string `default:"q8_0" enum:"f32,bf16,f16,q8_0,q4_0,iq4_nl,int4,mxfp4" help:"Type of the weights in memory: f32, bf16, f16, q8_0, q4_0, iq4_nl, int4, mxfp4."`
	KVType  string `name:"kv-type" default:"bf16" enum:"f32,bf16,int8" help:"Type of the cache: f32, bf16, int8."`
	Mapping string `default:"gather" enum:"gather,reduce" help:"gather splits all projections; reduce keeps all attention weights on every node."`
	Context []int  `placeholder:"TOKENS" help:"Context lengths in tokens (default: 131072 or the maximum of the model, and half and a quarter of that)."`
	Ratio   int    `default:"4" help:"SnapStream keeps one of this many tokens."`
	Rows    int    `default:"512" help:"Tokens per step."`
	nodeSpeed
	Scale []int `placeholder:"NODES" range:"1..1024" help:"Also simulate the same step on these numbers of nodes, such as 16,64,256,1024, and show the bottleneck of each."`
	Batch int   `default:"256" range:"1..65536" help:"With --scale: sequences of the step."`
	JSON  bool  `name:"json" help:"Print the plan as JSON."`
}

func (c *PlanCmd) Help() string {
	return `Reads a config and no weights. The cache of a sequence is on one node. "most" is the number of
sequences that fit in the memory of all nodes. "batch" rounds the number per node down to a
power of two, as static graphs require. Memory that prefill uses for a prompt is not included.
"N cut over all nodes" is the number of sequences that fit no node, but all nodes together.
tokens/s is the rate of decode with that batch. "first token" is the time to read a prompt of that
length alone. Both are computed from the speeds of a node and its link (docs/forecast.md).

  shoal plan                                   DeepSeek-R1 on 16 nodes of 64 GB
  shoal plan -m gemma-3-27b --nodes 2 --memory 48GB --context 131072
  shoal plan -m llama-3.1-70b --nodes 8 --delay 100us --link 25 --measure
  shoal plan --scale 16,32,64,128,256,512,1024 --batch 1024
  shoal plan -m ~/models/Llama-3.2-1B --nodes 4 --memory 8GB --json`
}

func (c *PlanCmd) Run(e *ui.Env) error {
	m, err := c.shape(e)
	if err != nil {
		return err
	}
	quant, err := tensor.ParseDType(c.Quant)
	if err != nil {
		return err
	}
	kv, err := tensor.ParseDType(c.KVType)
	if err != nil {
		return err
	}
	p, err := bench.RunPlan(m, bench.PlanOptions{Sockets: c.Nodes, Memory: c.Memory, Weights: quant, KV: kv,
		Mapping: topology.Mapping(c.Mapping), Rows: c.Rows, Contexts: c.Context, Ratio: c.Ratio})
	if err != nil {
		return err
	}
	f, err := c.forecast(e, m, p, quant, kv)
	if err != nil {
		return err
	}
	var misfit error
	if p.CacheBytes < 0 {
		misfit = fmt.Errorf("the weights do not fit: %s are missing on every node; use more nodes, more memory, or a smaller --quant",
			options.SizeText(-p.CacheBytes))
	}
	if c.JSON {
		return errors.Join(ui.PrintJSON(e.Stdout, f), misfit)
	}
	w := e.Stdout
	fmt.Fprintf(w, "%s, %s parameters, on %s, %s mapping\n", p.Model, ui.Count(p.Parameters), ui.Plural(p.Sockets, "node"), p.Mapping)
	fmt.Fprintf(w, "  each node: %s weights (%s), %s embedding (mapped), %s activations; %s of %s are left for caches\n",
		options.SizeText(p.WeightBytes), p.WeightType, options.SizeText(p.EmbeddingBytes), options.SizeText(p.WorkspaceBytes),
		options.SizeText(max(0, p.CacheBytes)), options.SizeText(p.Memory))
	fmt.Fprintf(w, "  cache of one token: %s (%s)\n", options.SizeText(p.TokenBytes), p.KVType)
	if misfit != nil {
		return misfit
	}
	c.nodeSpeed.print(w, f.Machine, f.weight)
	fmt.Fprintf(w, "\n  %8s  %10s  %12s  %24s  %9s  %24s  %9s\n", "context", "compressed", "first token", "full: batch (most)",
		"tokens/s", "snapstream: batch (most)", "tokens/s")
	for i, r := range p.Rows {
		t := f.Times[i]
		fmt.Fprintf(w, "  %8d  %10d  %10.1f s  %24s  %9s  %24s  %9s\n", r.Context, r.Compressed, t.FirstToken,
			batchText(r.Full), planRateText(t.Full.Rate), batchText(r.SnapStream), planRateText(t.SnapStream.Rate))
	}
	printScale(w, f.Scale, c.Batch)
	return nil
}

// batchText formats a cell of the table.
func batchText(b bench.PlanBatch) string {
	switch {
	case b.Cut > 0:
		return fmt.Sprintf("%d cut over all nodes", b.Cut)
	case b.Most == 0:
		return "does not fit"
	}
	return fmt.Sprintf("%d (%d)", b.Batch, b.Most)
}

// shape reads the config of a folder, or finds a public model by name.
func (c *PlanCmd) shape(e *ui.Env) (bench.PlanModel, error) {
	dir, err := onDisk(c.Model)
	if r, ok := fetchable(c.Model); dir == "" && err == nil && ok {
		var s *hub.Store
		if s, err = OpenStore(); err == nil {
			defer s.Close()
			dir, err = s.Config(e.Ctx, r)
		}
	} else if dir == "" {
		dir = c.Model
	}
	if err == nil && lora.IsFolder(dir) { // merging does not change sizes
		dir, err = baseOf(e, dir)
	}
	if err != nil {
		return bench.PlanModel{}, fmt.Errorf("--model: %w", err)
	}
	text, err := modelfile.Read(filepath.Join(dir, "config.json"), 16<<20)
	if err != nil {
		known, unknown := bench.PlanShape(c.Model)
		if unknown != nil && (strings.ContainsRune(c.Model, filepath.Separator) || ui.Exists(c.Model)) { // the word is a path
			unknown = fmt.Errorf("--model: %w; give a folder with a config.json, or one of: %s", err, strings.Join(bench.PlanShapes(), ", "))
		}
		return known, unknown
	}
	config, err := model.ParseConfig(c.Model, text, nil)
	if err != nil {
		return bench.PlanModel{}, err
	}
	return bench.PlanModelOf(c.Model, &config), nil
}
