package models

import (
	"errors"
	"fmt"

	"github.com/shoal-llm/shoal/actors/socket/shard"
	"github.com/shoal-llm/shoal/internal/cli/ui"
	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/engine/tensor/kernel"
	"github.com/shoal-llm/shoal/internal/hub"
	"github.com/shoal-llm/shoal/internal/options"
	"github.com/shoal-llm/shoal/internal/text/tokenizer"
	"github.com/shoal-llm/shoal/topology"
)

// VerifyCmd is the command verify.
type VerifyCmd struct {
	Model   string `arg:"" optional:"" help:"Model on this machine: a folder, a .gguf file, or a name from shoal models (default: the bundled model)."`
	SwiftKV string `name:"swiftkv" type:"path" placeholder:"DIR" help:"Folder of a SwiftKV adapter for the checkpoint."`
	Nodes   []int  `default:"1,2,4,8,16" range:"1..256" help:"Numbers of nodes for which to show the memory per node."`
	JSON    bool   `name:"json" help:"Print the report as JSON."`
}

func (c *VerifyCmd) Help() string {
	return `Reads the config, the tokenizer and every weight. For a pulled model it first compares the
SHA-256 or the git blob ID of each file with that of the hub. The exit status is 1 if a check
fails.

  shoal verify
  shoal verify ~/models/Llama-3.2-1B --nodes 2,3
  shoal verify ~/models/qwen2.5-7b-instruct-q4_k_m.gguf`
}

func (c *VerifyCmd) Run(e *ui.Env) error {
	at, err := c.files(e)
	if err != nil {
		return err
	}
	checked, err := checkHashes(e, at, !c.JSON)
	if err != nil {
		return err
	}
	dir, err := FindModel(e, at)
	if err != nil {
		return err
	}
	ck, err := checkpoint.OpenSwiftKV(dir, c.SwiftKV)
	if err != nil {
		return err
	}
	defer ck.Close()
	bar := ui.NewBar(e, "verify", !c.JSON)
	report, err := ck.Verify(e.Ctx, bar.Set)
	bar.End()
	if err != nil {
		return err
	}
	tok, tokErr := tokenizer.Load(dir)
	if c.JSON {
		perNode, mappings := map[int]int64{}, map[int]topology.Mapping{}
		for _, n := range c.Nodes {
			if mappings[n], perNode[n], err = nodeWeights(&report.Config, n); err != nil {
				return err
			}
		}
		if err := ui.PrintJSON(e.Stdout, map[string]any{"report": report, "weights_per_node_bytes": perNode, "mapping": mappings,
			"hashes": checked, "ok": report.Err() == nil && tokErr == nil}); err != nil {
			return err
		}
	} else {
		if err := c.print(e, report, tokErr == nil); err != nil {
			return err
		}
		if checked.Files > 0 {
			fmt.Fprintf(e.Stdout, "    %s, %s: all bytes match the checksums of the hub\n",
				ui.Plural(checked.Files, "file"), options.SizeText(checked.Bytes))
		}
		if tokErr == nil {
			for _, warning := range tok.Warnings() {
				fmt.Fprintf(e.Stdout, "  warning: %s\n", warning)
			}
		}
	}
	if err := report.Err(); err != nil {
		return err
	}
	return tokErr
}

// files finds the model on this machine. It downloads nothing.
func (c *VerifyCmd) files(e *ui.Env) (string, error) {
	if r, ok := fetchable(c.Model); ok {
		if at, err := onDisk(c.Model); at != "" || err != nil {
			return at, err
		}
		s, err := OpenStore()
		if err != nil {
			return "", err
		}
		defer s.Close()
		m, err := s.Find(r)
		return m.Path, err
	}
	if c.Model == "" {
		return ModelFlag{}.Dir(e)
	}
	return FindFiles(e, c.Model)
}

// hashed counts the files and bytes that checkHashes has read.
type hashed struct {
	Files int   `json:"files"`
	Bytes int64 `json:"bytes"`
}

// checkHashes compares the files that have recorded hashes with these. The error names all files
// that differ.
func checkHashes(e *ui.Env, at string, show bool) (out hashed, err error) {
	files, err := hub.RecordedAt(at)
	if err != nil || len(files) == 0 {
		return out, err
	}
	var total int64
	for _, f := range files {
		total += f.Size
	}
	bar := ui.NewBar(e, "hashes", show)
	defer bar.End()
	for _, f := range files {
		if e.Ctx.Err() != nil {
			return out, e.Ctx.Err()
		}
		err = errors.Join(err, hub.CheckFile(f.Path, f.Digest, func(n int64) {
			out.Bytes += n
			bar.Set(out.Bytes, total)
		}))
		out.Files++
	}
	return out, err
}

// nodeWeights returns the largest memory of the weights on one of n nodes with equal shares. It
// uses the default type, and the mapping that a cluster chooses without measurements.
func nodeWeights(c *model.Config, n int) (topology.Mapping, int64, error) {
	shape := shard.ShapeOf(c)
	dt := tensor.F32
	if c.DType == tensor.BF16 || kernel.Quantized(c.DType) {
		dt = c.DType
	}
	mapping := topology.ChooseMapping(shape, max(n, 1),
		topology.MeasuredCosts(make([]topology.Node, max(n, 1)), float64(dt.BytesPerRow(32))/32))
	members := make([]topology.Member, max(n, 1))
	for i := range members {
		members[i] = topology.Member{ID: fmt.Sprint(i), Share: 1}
	}
	place, err := topology.Place(1, mapping, shape, members)
	if err != nil {
		return mapping, 0, fmt.Errorf("--nodes %d: %w", n, err)
	}
	var most int64
	for rank := range members {
		most = max(most, shard.Bytes(c, place, rank, dt))
	}
	return mapping, most, nil
}

func (c *VerifyCmd) print(e *ui.Env, r *checkpoint.Report, tokenizes bool) error {
	m := r.Config
	w := e.Stdout
	fmt.Fprintf(w, "%s\n  %s, %s parameters, %s as stored\n", r.Dir, m.Architecture, ui.Count(r.Parameters), options.SizeText(r.Bytes))
	fmt.Fprintf(w, "  %d layers, hidden %d, %d heads (%d kv) of %d, ffn %d, vocabulary %d, context %d\n",
		m.Layers, m.Hidden, m.Heads, m.KVHeads, m.HeadDim, m.FFN, m.Vocab, m.MaxPositions)
	if g := m.Global; g.Dim > 0 {
		fmt.Fprintf(w, "  layers without a window: %d kv heads of %d\n", g.Heads, g.Dim)
	}
	for _, warning := range m.Warnings {
		fmt.Fprintf(w, "  warning: %v\n", warning)
	}
	if s := m.SwiftKV; s.Layers > 0 {
		fmt.Fprintf(w, "  SwiftKV: prompt tokens skip the layers after layer %d; these %d layers have %d caches\n", s.Layers,
			m.Layers-s.Layers, m.CacheLayers()-s.Layers)
	}
	for _, t := range r.Types {
		fmt.Fprintf(w, "  %s: %d tensors, %s parameters, %s\n", t.Stored, t.Tensors, ui.Count(t.Parameters), options.SizeText(t.Bytes))
	}
	fmt.Fprintf(w, "  cache of one token: %s in bf16, %s in f32\n  content %s\n\n", options.SizeText(r.KVBytesBF16),
		options.SizeText(r.KVBytesF32), r.Hash)
	fmt.Fprintf(w, "  %6s  %7s  %16s  %28s\n", "nodes", "mapping", "weights per node", "tokens in 1 GiB of cache each")
	for _, n := range c.Nodes {
		mapping, bytes, err := nodeWeights(&r.Config, n)
		if err != nil {
			return err
		}
		fmt.Fprintf(w, "  %6d  %7s  %16s  %28d\n", n, mapping, options.SizeText(bytes), int64(n)*(1<<30)/r.KVBytesBF16)
	}
	if note := AdapterNote(r.Dir); note != "" {
		fmt.Fprintf(w, "\n%s\n", note)
	}
	if r.Err() == nil && tokenizes {
		fmt.Fprintf(w, "\nok: %d tensors, all weights finite\n", len(r.Tensors))
	}
	return nil
}
