package cli

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/shoal-llm/shoal/bench"
	"github.com/shoal-llm/shoal/grammar"
	"github.com/shoal-llm/shoal/tokenizer"
)

type benchGrammarCmd struct {
	Schemas string `arg:"" type:"existingdir" help:"MaskBench's schemas: maskbench/data of the repository guidance-ai/jsonschemabench."`
	Model   string `short:"m" required:"" type:"existingdir" placeholder:"DIR" help:"Folder with the tokenizer of the vocabulary that is masked."`
	Step    int    `default:"1" help:"Take every N-th schema."`
	Threads int    `default:"1" help:"Schemas at once."`
	Ordered bool   `help:"Let properties come in the schema's order alone."`
	List    bool   `help:"Name every schema that was refused or judged wrongly."`
	JSON    bool   `name:"json" help:"Print JSON."`
}

func (c *benchGrammarCmd) Run(e *env) error {
	tok, err := tokenizer.Load(c.Model)
	if err != nil {
		return err
	}
	files, err := bench.GrammarFiles(c.Schemas, c.Step)
	if err != nil {
		return err
	}
	began := time.Now()
	var eos []int32
	if id, ok := tok.EOS(); ok {
		eos = append(eos, id)
	}
	v := grammar.NewVocabulary(tok.VocabSize(), tok.PlainBytes, eos)
	ready := time.Since(began)
	encode := func(s string) []int32 { return tok.Encode(s, false) }
	f, err := bench.RunGrammar(v, encode, files, c.Threads, !c.Ordered)
	if err != nil {
		return err
	}
	if c.JSON {
		return json.NewEncoder(e.stdout).Encode(f)
	}
	w := e.stdout
	fmt.Fprintf(w, "vocabulary          %d tokens, ready in %v\n", v.Size(), ready.Round(time.Millisecond))
	fmt.Fprintf(w, "schemas             %d, of which pass %d\n", f.Schemas, f.Passed)
	fmt.Fprintf(w, "refused             %d\n", f.CompileErrors)
	fmt.Fprintf(w, "validation errors   %d (refuses what fits)\n", f.Validation)
	fmt.Fprintf(w, "invalidation errors %d (lets through what does not)\n", f.Invalidation)
	us := func(d time.Duration) string { return fmt.Sprintf("%.0f us", float64(d.Nanoseconds())/1000) }
	fmt.Fprintf(w, "masks               %d: mean %s, p50 %s, p99 %s, p99.9 %s, most %s\n", f.Masks, us(f.MaskMean), us(f.MaskP50), us(f.MaskP99), us(f.MaskP999), us(f.MaskMax))
	fmt.Fprintf(w, "compile             p50 %s, p99 %s, most %s\n", us(f.CompileP50), us(f.CompileP99), us(f.CompileMax))
	for _, k := range slices.SortedFunc(maps.Keys(f.Reasons), func(a, b string) int { return f.Reasons[b] - f.Reasons[a] }) {
		if f.Reasons[k] > 9 || c.List {
			fmt.Fprintf(w, "refused for         %5d %s\n", f.Reasons[k], k)
		}
	}
	if c.List {
		for _, list := range [][]string{f.Wrong, f.Refused, f.Slowest} {
			for _, s := range list {
				fmt.Fprintln(w, s)
			}
		}
	}
	return nil
}
