package bench

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/internal/text/grammar"
	"github.com/shoal-llm/shoal/internal/text/tokenizer"
)

var (
	schemas = flag.String("schemas", "", "MaskBench's schemas: the `folder` maskbench/data of guidance-ai/jsonschemabench")
	masked  = flag.String("tokenizer", "../../models/fry", "`folder` with the tokenizer of the vocabulary that is masked")
	every   = flag.Int("step", 1, "take every N-th schema")
	threads = flag.Int("threads", 1, "schemas at once")
	free    = flag.Bool("any-order", false, "let properties come in any order")
	open    = flag.Bool("open", false, "let objects hold members that their schema does not name")
	named   = flag.Bool("named", false, "name every schema that was refused or judged wrongly")
)

// TestMaskBench is `make maskbench`: no invalid instance may be accepted.
func TestMaskBench(t *testing.T) {
	if *schemas == "" {
		t.Skip("-schemas DIR")
	}
	tok, err := tokenizer.Load(*masked)
	if err != nil {
		t.Fatal(err)
	}
	files, err := grammarFiles(*schemas, *every)
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	var eos []int32
	if id, ok := tok.EOS(); ok {
		eos = append(eos, id)
	}
	v := grammar.NewVocabulary(tok.VocabSize(), tok.PlainBytes, eos)
	t.Logf("vocabulary          %d tokens, ready in %v", v.Size(), time.Since(began).Round(time.Millisecond))
	f, err := runGrammar(v, func(s string) []int32 { return tok.Encode(s, false) }, files, *threads,
		grammar.Spec{Kind: grammar.KindJSONSchema, AnyOrder: *free, Open: *open})
	if err != nil {
		t.Fatal(err)
	}
	us := func(d time.Duration) string { return fmt.Sprintf("%.0f us", float64(d.Nanoseconds())/1000) }
	t.Logf("schemas             %d, of which pass %d", f.Schemas, f.Passed)
	t.Logf("refused             %d", f.CompileErrors)
	t.Logf("validation errors   %d (refuses valid texts)", f.Validation)
	t.Logf("invalidation errors %d (accepts invalid texts)", f.Invalidation)
	t.Logf("annotations         %d (accepts texts that an unknown format forbids)", f.Annotated)
	t.Logf("masks               %d: mean %s, p50 %s, p99 %s, p99.9 %s, most %s", f.Masks, us(f.MaskMean),
		us(f.MaskP50), us(f.MaskP99), us(f.MaskP999), us(f.MaskMax))
	t.Logf("compile             p50 %s, p99 %s, most %s", us(f.CompileP50), us(f.CompileP99), us(f.CompileMax))
	for _, k := range slices.SortedFunc(maps.Keys(f.Reasons), func(a, b string) int { return f.Reasons[b] - f.Reasons[a] }) {
		if f.Reasons[k] > 9 || *named {
			t.Logf("refused for         %5d %s", f.Reasons[k], k)
		}
	}
	if *named {
		for _, s := range slices.Concat(f.Wrong, f.Refused, f.Slowest) {
			t.Log(s)
		}
	}
	if f.Invalidation > 0 {
		t.Errorf("%d schemas accepted an invalid instance (-named lists them)", f.Invalidation)
	}
}

// grammarFigures are the counts of MaskBench (guidance-ai/jsonschemabench): JSON schemas with valid
// and invalid instances, token by token, with a mask before each.
type grammarFigures struct {
	Schemas, Passed int
	CompileErrors   int // explicit refusals
	Validation      int // schemas with a valid instance that was refused
	Invalidation    int // schemas with an invalid instance that was accepted
	Annotated       int // schemas with an accepted instance that only an unenforced format forbids
	Masks           int
	MaskMean        time.Duration
	MaskP50         time.Duration
	MaskP99         time.Duration
	MaskP999        time.Duration
	MaskMax         time.Duration
	CompileP50      time.Duration
	CompileP99      time.Duration
	CompileMax      time.Duration
	Reasons         map[string]int // refusals by keyword

	Slowest []string // schemas with the longest masks and compilations
	Wrong   []string // schemas with validation or invalidation errors, with the kind
	Refused []string
}

type grammarResult struct {
	name            string
	compile         time.Duration
	masks           []time.Duration
	err             error
	refuses, allows string
	annotated       bool // accepted an instance that only an unenforced format forbids
}

// runGrammar measures every schema of a folder of MaskBench's files.
func runGrammar(v *grammar.Vocabulary, encode func(string) []int32, files []string, threads int,
	how grammar.Spec) (*grammarFigures, error) {
	results := make([]grammarResult, len(files))
	var wg sync.WaitGroup
	next := make(chan int)
	var first error
	var mu sync.Mutex
	for range max(threads, 1) {
		wg.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			for i := range next {
				r, err := oneSchema(v, encode, files[i], how)
				results[i] = r
				if err != nil {
					mu.Lock()
					first = cmp.Or(first, err)
					mu.Unlock()
				}
			}
		})
	}
	for i := range files {
		next <- i
	}
	close(next)
	wg.Wait()
	if first != nil {
		return nil, first
	}
	f := &grammarFigures{Schemas: len(files), Reasons: map[string]int{}}
	var masks, compiles []time.Duration
	type slow struct {
		d time.Duration
		s string
	}
	var slows []slow
	for i := range results {
		r := &results[i]
		slows = append(slows, slow{r.compile, fmt.Sprintf("compile %v %s", r.compile, r.name)})
		if r.err != nil {
			f.CompileErrors++
			why := r.err.Error()
			var known *grammar.Error
			if errors.As(r.err, &known) && known.Keyword != "" {
				why = known.Keyword
			}
			f.Reasons[why[:min(len(why), 60)]]++
			f.Refused = append(f.Refused, r.name+": "+r.err.Error())
			continue
		}
		compiles = append(compiles, r.compile)
		masks = append(masks, r.masks...)
		if len(r.masks) > 0 {
			m := slices.Max(r.masks)
			slows = append(slows, slow{m, fmt.Sprintf("mask %v %s", m, r.name)})
		}
		switch {
		case r.allows != "":
			f.Invalidation++
			f.Wrong = append(f.Wrong, r.name+": lets through "+r.allows)
		case r.annotated:
			f.Annotated++
			f.Wrong = append(f.Wrong, r.name+": a format has no effect")
		case r.refuses != "":
			f.Validation++
			f.Wrong = append(f.Wrong, r.name+": refuses "+r.refuses)
		default:
			f.Passed++
		}
	}
	slices.SortFunc(slows, func(a, b slow) int { return cmp.Compare(b.d, a.d) })
	for _, s := range slows[:min(len(slows), 20)] {
		f.Slowest = append(f.Slowest, s.s)
	}
	slices.Sort(masks)
	slices.Sort(compiles)
	at := func(d []time.Duration, q float64) time.Duration {
		if len(d) == 0 {
			return 0
		}
		return d[min(len(d)-1, int(q*float64(len(d))))]
	}
	var sum time.Duration
	for _, m := range masks {
		sum += m
	}
	f.Masks = len(masks)
	f.MaskMean = sum / time.Duration(max(1, len(masks)))
	f.MaskP50, f.MaskP99, f.MaskP999, f.MaskMax = at(masks, 0.5), at(masks, 0.99), at(masks, 0.999), at(masks, 1)
	f.CompileP50, f.CompileP99, f.CompileMax = at(compiles, 0.5), at(compiles, 0.99), at(compiles, 1)
	return f, nil
}

// grammarFiles returns every step-th schema of a folder.
func grammarFiles(dir string, step int) ([]string, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil || len(files) == 0 {
		return nil, fmt.Errorf("no schemas (*.json) in %s: fetch maskbench/data of guidance-ai/jsonschemabench", dir)
	}
	var out []string
	for i := 0; i < len(files); i += max(step, 1) {
		out = append(out, files[i])
	}
	return out, nil
}

func oneSchema(v *grammar.Vocabulary, encode func(string) []int32, file string, how grammar.Spec) (grammarResult, error) {
	r := grammarResult{name: filepath.Base(file)}
	data, err := os.ReadFile(file)
	if err != nil {
		return r, err
	}
	var body struct {
		Schema json.RawMessage `json:"schema"`
		Tests  []struct {
			Valid bool            `json:"valid"`
			Data  json.RawMessage `json:"data"`
		} `json:"tests"`
	}
	if err := json.Unmarshal(data, &body); err != nil {
		return r, fmt.Errorf("%s: %w", file, err)
	}
	began := time.Now()
	var g *grammar.Grammar
	how.Text = string(body.Schema)
	g, r.err = grammar.New(v, how)
	r.compile = time.Since(began)
	if r.err != nil {
		return r, nil //nolint:nilerr // a schema that is refused is a result
	}
	for i, t := range body.Tests {
		text, err := likePython(t.Data)
		if err != nil {
			return r, fmt.Errorf("%s: %w", file, err)
		}
		ok, at := true, g.Start()
		for _, id := range encode(text) {
			began := time.Now()
			mask, err := at.Mask()
			if err == nil {
				var to grammar.State
				to, err = at.Advance(id)
				if (err == nil) != mask.Has(id) {
					return r, fmt.Errorf("%s: test %d: mask %v of token %d, state %v", file, i, mask.Has(id), id, err)
				}
				if err == nil {
					at = to
				}
			}
			r.masks = append(r.masks, time.Since(began))
			if err != nil {
				ok = false
				break
			}
		}
		ok = ok && at.Ends()
		switch {
		case ok && !t.Valid && len(g.Annotations()) > 0:
			r.annotated = true // by an unknown format, according to the suite
		case ok && !t.Valid && r.allows == "":
			r.allows = fmt.Sprintf("test %d: %.300s", i, text)
		case !ok && t.Valid && r.refuses == "":
			r.refuses = fmt.Sprintf("test %d: %.300s", i, text)
		}
	}
	return r, nil
}

// likePython formats JSON like json.dumps(x, ensure_ascii=False).
func likePython(raw json.RawMessage) (string, error) {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var out strings.Builder
	var value func() error
	quote := func(s string) {
		out.WriteByte('"')
		for _, c := range s {
			switch {
			case c == '"', c == '\\':
				out.WriteByte('\\')
				out.WriteRune(c)
			case c < 0x20:
				if i := strings.IndexRune("\b\f\n\r\t", c); i >= 0 {
					out.WriteByte('\\')
					out.WriteByte("bfnrt"[i])
				} else {
					fmt.Fprintf(&out, `\u%04x`, c)
				}
			default:
				out.WriteRune(c)
			}
		}
		out.WriteByte('"')
	}
	value = func() error {
		t, err := d.Token()
		if err != nil {
			return err
		}
		switch t := t.(type) {
		case json.Delim:
			out.WriteString(t.String())
			for i := 0; d.More(); i++ {
				if i > 0 {
					out.WriteString(", ")
				}
				if t == '{' {
					k, err := d.Token()
					if err != nil {
						return err
					}
					quote(k.(string))
					out.WriteString(": ")
				}
				if err := value(); err != nil {
					return err
				}
			}
			end, err := d.Token()
			if err == nil {
				out.WriteString(end.(json.Delim).String())
			}
			return err
		case string:
			quote(t)
		case bool:
			out.WriteString(strconv.FormatBool(t))
		case nil:
			out.WriteString("null")
		case json.Number:
			out.WriteString(pythonNumber(t.String()))
		}
		return nil
	}
	err := value()
	return out.String(), err
}

func pythonNumber(s string) string {
	if !strings.ContainsAny(s, ".eE") {
		return s
	}
	x, err := strconv.ParseFloat(s, 64)
	if err != nil || math.IsInf(x, 0) {
		return s
	}
	if a := math.Abs(x); a != 0 && (a < 1e-4 || a >= 1e16) {
		return strconv.FormatFloat(x, 'e', -1, 64)
	}
	s = strconv.FormatFloat(x, 'f', -1, 64)
	if !strings.Contains(s, ".") {
		s += ".0"
	}
	return s
}
