package lab

import (
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/actors/batcher"
	"github.com/shoal-llm/shoal/internal/bench"
	"github.com/shoal-llm/shoal/internal/cli/ui"
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/sampler"
	"github.com/shoal-llm/shoal/internal/engine/speculate"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// replayed runs only the batcher on replayed answers, batch of them at a time. Each further row of a
// step costs the fraction each of the first. It returns the speedup from drafts and the tokens per row.
func replayed(t *testing.T, text bench.SpeculateText, batch int, each float64) (over, perRow float64) {
	s, err := batcher.New(batcher.Config{Geometry: kvcache.Geometry{Layers: 1, KVHeads: 1,
		Layout: tensor.KVLayout{Type: tensor.BF16, KDim: 8, VDim: 8}}, ContextLimit: 8192})
	if err != nil {
		t.Fatal(err)
	}
	s.Step(batcher.Placed{Epoch: 1, Sockets: []batcher.Socket{{ID: "n1", Budget: 1 << 30, Heads: tensor.Span{Lo: 0, Hi: 1}}}})
	jitter := rand.New(rand.NewPCG(1, 4))
	var on, off, tokens, rows float64
	for first := 0; first+batch <= len(text.Prompts); first += batch {
		var e batcher.Effects
		of := map[uint64]int{} // index of the text of a sequence
		for i := first; i < first+batch; i++ {
			p := greedily(i)
			more := s.Step(batcher.Submit{Spec: batcher.Spec{ID: fmt.Sprint(i), Prompt: text.Prompts[i],
				MaxTokens: min(text.Tokens, len(text.Replay[i])), Sampling: &p, IgnoreEOS: true,
				PromptLogprobs: -1, Policy: kvcache.Full(), Speculate: speculate.Suffix, Tenant: fmt.Sprint(first)}})
			if more.Start != nil {
				e = more
			}
		}
		for e.Start != nil {
			p := e.Start
			for _, o := range p.Open {
				if of[o.Seq], err = strconv.Atoi(o.ID); err != nil {
					t.Fatal(err)
				}
			}
			d := batcher.StepDone{Epoch: p.Epoch, Step: p.Step}
			drawn := func(seq uint64, position int) sampler.Result { // the token after position
				replay := text.Replay[of[seq]]
				return sampler.Result{Token: replay[min(position+1-len(text.Prompts[of[seq]]), len(replay)-1)]}
			}
			for _, c := range p.Chunks {
				if c.Sample {
					d.Results = append(d.Results, batcher.Result{Seq: c.Seq, Samples: []sampler.Result{drawn(c.Seq, c.Start+len(c.Tokens)-1)}})
				}
			}
			took := 1000 * (1 + each*float64(p.Tokens()-1))
			for _, x := range p.Decode {
				r := batcher.Result{Seq: x.Seq}
				for i := range x.Tokens {
					r.Samples = append(r.Samples, drawn(x.Seq, x.Start+i))
					if i+1 < len(x.Tokens) && x.Tokens[i+1] != r.Samples[i].Token {
						break
					}
				}
				d.Results = append(d.Results, r)
				if len(p.Chunks) == 0 {
					tokens, rows = tokens+float64(len(r.Samples)), rows+1
					on += took / float64(len(p.Decode))
					off += float64(len(r.Samples)) * 1000 * (1 + each*float64(len(p.Decode)-1)) / float64(len(p.Decode))
				}
			}
			d.Micros = int64(took * (0.9 + 0.2*jitter.Float64()))
			e = s.Step(d)
		}
	}
	return off / on, tokens / rows
}

// edits returns files of the tree with edited versions, one text per way to edit.
func edits(t *testing.T, m *fixtures) (all []bench.SpeculateText) {
	files := []string{"../../../collective/state.go", "../../text/grammar/object.go",
		"../../engine/sampler/sample.go", "../../../docs/adding-a-model.md"}
	word := regexp.MustCompile(`\b[A-Za-z]{3,}\b`)
	ways := map[string]func(r *rand.Rand, lines []string) []string{
		"a tenth of the lines": func(r *rand.Rand, lines []string) []string {
			for range max(1, len(lines)/10) {
				switch k := r.IntN(len(lines)); r.IntN(3) {
				case 0:
					lines = slices.Delete(lines, k, k+1)
				case 1:
					lines = slices.Insert(lines, k, fmt.Sprintf("\tif err := check(x, %d); err != nil {\n\t\treturn err\n\t}\n", r.IntN(99)))
				default:
					lines[k] = word.ReplaceAllString(lines[k], "deadline")
				}
			}
			return lines
		},
		"two names": func(r *rand.Rand, lines []string) []string {
			text := strings.Join(lines, "")
			for range 2 {
				all := word.FindAllString(text, -1)
				name := all[r.IntN(len(all))]
				text = regexp.MustCompile(`\b`+name+`\b`).ReplaceAllString(text, name+"s"+strings.ToUpper(name[:1]))
			}
			return []string{text}
		},
		"second half first": func(_ *rand.Rand, lines []string) []string {
			return slices.Concat(lines[len(lines)/2:], lines[:len(lines)/2])
		},
		"each line begins anew": func(_ *rand.Rand, lines []string) []string {
			for i := range lines {
				lines[i] = "+ " + lines[i]
			}
			return lines
		},
	}
	for way, change := range ways {
		x := bench.SpeculateText{Kind: way, Tokens: 400}
		for i := range 12 {
			r := rand.New(rand.NewPCG(7, uint64(i)))
			text, err := os.ReadFile(files[i%len(files)])
			if err != nil {
				t.Fatal(err)
			}
			code := m.cut(string(text), r.IntN(len(text)), 300)
			x.Prompts = append(x.Prompts, slices.Concat(m.tok.Encode("", true), m.tok.EncodeLiteral(code+"\n// "+way+":\n\n")))
			x.Replay = append(x.Replay, m.tok.EncodeLiteral(strings.Join(change(r, strings.SplitAfter(code, "\n")), "")))
		}
		all = append(all, x)
	}
	return all
}

// TestDraftsOfTexts checks the gain from drafts without a model, for the texts of the bench and for
// files that are edited in other ways. Cheap rows, as over several nodes or with large weights, must
// gain a minimum. Expensive rows must lose nothing.
func TestDraftsOfTexts(t *testing.T) {
	m, err := newFixtures(ui.Quiet(t.Context()), "llama-3.2-1b")
	if err != nil {
		t.Fatal(err)
	}
	texts := edits(t, m)
	for _, kind := range []string{"edit", "again", "code", "retrieval", "chat", "random"} {
		text, err := m.text(nil, nil, kind)
		if err != nil {
			t.Fatal(err)
		}
		text.Tokens = 192
		texts = append(texts, text)
	}
	least := map[string]float64{"edit": 3.4, "again": 4.8, "code": 8, "retrieval": 2.6, "a tenth of the lines": 4,
		"two names": 4.5, "second half first": 5, "each line begins anew": 3}
	for _, text := range texts {
		line := fmt.Sprintf("%-22s", text.Kind)
		for _, batch := range []int{1, 4, 12} {
			for _, each := range []float64{0.045, 0.3, 0.8} {
				over, perRow := replayed(t, text, batch, each)
				line += fmt.Sprintf(" | %d, %.3f: %.2f, %.2f a row", batch, each, over, perRow)
				if over < 0.97 || batch == 1 && each == 0.045 && over < least[text.Kind] {
					t.Errorf("%s, %d together, a row costs %.3f: %.2f", text.Kind, batch, each, over)
				}
			}
		}
		t.Log(line)
	}
}
