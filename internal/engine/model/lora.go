package model

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strings"

	"github.com/shoal-llm/shoal/internal/engine/safetensors"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/sys/mmap"
)

// A LoRA adapter (arXiv:2106.09685) is a folder in PEFT's format. For some matrices W [out, in] of
// a checkpoint it has A [r, in] and B [out, r], and the model uses W + (alpha/r) B A. It is merged
// once, into an ordinary checkpoint, so serving needs no special case and answers are as fast and
// reproducible as any.
const (
	loraConfig  = "adapter_config.json"
	loraWeights = "adapter_model.safetensors"
	maxRankLoRA = 1 << 12
)

// loraPair holds the two factors of one matrix.
type loraPair struct{ a, b *safetensors.Entry }

// lora is an open adapter.
type lora struct {
	*shard
	path  string
	scale float64
	pairs map[string]loraPair // by the name of the matrix in its base
}

// IsLoRA reports whether a folder holds a LoRA adapter and no model.
func IsLoRA(dir string) bool {
	_, adapter := os.Stat(join(dir, loraConfig))
	_, whole := os.Stat(join(dir, configFile))
	return adapter == nil && whole != nil
}

// BaseOfLoRA returns the base that a LoRA adapter names: a folder or a model name.
func BaseOfLoRA(dir string) (string, error) {
	f, err := readLoRAConfig(dir)
	if err != nil {
		return "", err
	}
	base := f.Text("base_model_name_or_path", "")
	return base, f.err
}

func readLoRAConfig(dir string) (*fields, error) {
	path := join(dir, loraConfig)
	text, err := readSmall(path, maxAdapterFile)
	if err != nil {
		return nil, err
	}
	return parseFields(path, text)
}

// MergeLoRA writes the weights of base with the adapter merged to the existing folder out:
// model.safetensors alone. A merged row is summed in double precision and rounded once to W's
// stored type.
func MergeLoRA(base, adapter, out string) (err error) {
	ck, err := Open(base)
	if err != nil {
		return err
	}
	defer ck.Close()
	if ck.gguf || ck.random != nil {
		return &Error{File: base, Kind: ErrUnsupported, Detail: "a LoRA adapter is merged into a Hugging Face folder, not into a GGUF file or random weights"}
	}
	l, err := openLoRA(adapter)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	var shards []*shard
	defer func() {
		for _, s := range shards {
			err = errors.Join(err, s.Close())
		}
	}()
	known := map[string]*safetensors.Entry{}
	for _, path := range ck.Files() {
		s, err := openShard(path)
		if err != nil {
			return err
		}
		shards = append(shards, s)
		for i := range s.entries {
			known[s.entries[i].Name] = &s.entries[i]
		}
	}
	if err := l.fits(known); err != nil {
		return err
	}
	f, err := os.OpenFile(join(out, weightsFile), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return fmt.Errorf("model: merging: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	mark, err := ck.Recheck(context.Background())
	if err != nil {
		return err
	}
	if fault := mmap.Guard(func() { err = l.write(f, shards) }); fault != nil {
		err = fault
	}
	return errors.Join(err, ck.Since(mark))
}

// openLoRA reads an adapter and refuses settings that would change the sum.
func openLoRA(dir string) (*lora, error) {
	f, err := readLoRAConfig(dir)
	if err != nil {
		return nil, err
	}
	f.OneOf("peft_type", "LORA", "LORA")
	f.OneOf("bias", "none", "none")
	for _, key := range []string{"fan_in_fan_out", "use_dora", "lora_bias"} {
		if f.Bool(key, false) {
			f.fail(key, ErrUnsupported, "is not merged here: merge it with PEFT (merge_and_unload) and serve that")
		}
	}
	for _, key := range []string{"modules_to_save", "rank_pattern", "alpha_pattern", "megatron_config", "trainable_token_indices"} {
		if v := strings.TrimSpace(string(f.raw[key])); v != "" && v != "null" && v != "{}" && v != "[]" {
			f.fail(key, ErrUnsupported, "is not merged here: merge it with PEFT (merge_and_unload) and serve that")
		}
	}
	rank := f.Size("r", 0, maxRankLoRA)
	scale := f.Required("lora_alpha", 1e-6, 1e6) / float64(max(rank, 1))
	if f.Bool("use_rslora", false) {
		scale *= math.Sqrt(float64(rank))
	}
	if f.err != nil {
		return nil, f.err
	}
	l := &lora{path: join(dir, loraWeights), scale: scale, pairs: map[string]loraPair{}}
	if l.shard, err = openShard(l.path); err != nil {
		return nil, err
	}
	if err := l.pair(rank); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// pair finds both factors of every matrix.
func (l *lora) pair(rank int) error {
	refuse := func(e *safetensors.Entry, kind error, format string, args ...any) error {
		return &Error{File: l.path, Tensor: e.Name, Kind: kind, Detail: fmt.Sprintf(format, args...)}
	}
	for i := range l.entries {
		e := &l.entries[i]
		name, ok := strings.CutPrefix(e.Name, "base_model.model.")
		of, isA := strings.CutSuffix(name, ".lora_A.weight")
		if !isA {
			var isB bool
			of, isB = strings.CutSuffix(name, ".lora_B.weight")
			ok = ok && isB
		}
		if !ok {
			return refuse(e, ErrUnsupported, "is not a factor of a matrix (base_model.model.NAME.lora_A.weight or lora_B.weight)")
		}
		if _, ok := weightType[e.Stored]; !ok || len(e.Shape) != 2 {
			return refuse(e, ErrUnsupported, "is %s of shape %v; want a matrix of F32, BF16 or F16", e.Stored, e.Shape)
		}
		p, at := l.pairs[of+".weight"], 0
		if isA {
			p.a = e
		} else {
			p.b, at = e, 1
		}
		if e.Shape[at] != rank {
			return refuse(e, ErrMismatch, "has shape %v, but the adapter's rank is %d", e.Shape, rank)
		}
		l.pairs[of+".weight"] = p
	}
	if len(l.pairs) == 0 {
		return &Error{File: l.path, Kind: ErrMissing, Detail: "holds no factors"}
	}
	return nil
}

// fits compares the adapter with the tensors of its base.
func (l *lora) fits(known map[string]*safetensors.Entry) error {
	var bad Problems
	for name, p := range l.pairs {
		e, weight := known[name], false
		if e != nil {
			_, weight = weightType[e.Stored]
		}
		fail := func(kind error, format string, args ...any) {
			bad.List = append(bad.List, &Error{File: l.path, Tensor: name, Kind: kind, Detail: fmt.Sprintf(format, args...)})
		}
		switch {
		case p.a == nil || p.b == nil:
			fail(ErrMissing, "has one factor of two")
		case e == nil:
			fail(ErrMismatch, "is not in the base: is this another model's adapter?")
		case !weight:
			fail(ErrUnsupported, "is stored as %s; only F32, BF16 and F16 can be merged", e.Stored)
		case !slices.Equal(e.Shape, []int{p.b.Shape[0], p.a.Shape[1]}):
			fail(ErrMismatch, "has shape %v in the base, [%d %d] in the adapter", e.Shape, p.b.Shape[0], p.a.Shape[1])
		}
	}
	slices.SortFunc(bad.List, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return bad.in(l.path)
}

// write writes one file with the tensors of all shards.
func (l *lora) write(w io.Writer, shards []*shard) error {
	type header struct {
		DType  string   `json:"dtype"`
		Shape  []int    `json:"shape"`
		Offset [2]int64 `json:"data_offsets"`
	}
	all, at := map[string]any{"__metadata__": map[string]string{"format": "pt"}}, int64(0)
	for _, s := range shards {
		for _, e := range s.entries {
			size := e.End - e.Begin
			all[e.Name] = header{e.Stored, e.Shape, [2]int64{at, at + size}}
			at += size
		}
	}
	head, err := json.Marshal(all)
	if err != nil {
		return err
	}
	for len(head)%8 != 0 {
		head = append(head, ' ')
	}
	if _, err := w.Write(append(binary.LittleEndian.AppendUint64(nil, uint64(len(head))), head...)); err != nil {
		return fmt.Errorf("model: merging: %w", err)
	}
	for _, s := range shards {
		for _, e := range s.entries {
			p, ok := l.pairs[e.Name]
			if !ok {
				_, err = w.Write(s.data[e.Begin:e.End])
			} else {
				err = l.merge(w, s.tensor(&e), l.tensor(p.a), l.tensor(p.b))
			}
			if err != nil {
				return fmt.Errorf("model: merging: %w", err)
			}
		}
	}
	return nil
}

// tensor returns the contents of an entry whose type is possible for a weight.
func (s *shard) tensor(e *safetensors.Entry) Tensor {
	return Tensor{Name: e.Name, DType: weightType[e.Stored], Shape: e.Shape, Data: s.data[e.Begin:e.End:e.End]}
}

// merge writes w + scale b a, row by row. Products of two float32 are exact in float64, so fused
// multiply-add and separate operations give the same bits.
func (l *lora) merge(to io.Writer, w, a, b Tensor) error {
	rows, cols, rank := w.Rows(), w.Cols(), a.Rows()
	factors := make([]float32, rank*cols)
	for k := range rank {
		a.Row(factors[k*cols:(k+1)*cols], k, 0, cols)
	}
	row, mine, sum, raw := make([]float32, cols), make([]float32, rank), make([]float64, cols), make([]byte, w.DType.BytesPerRow(cols))
	for r := range rows {
		w.Row(row, r, 0, cols)
		b.Row(mine, r, 0, rank)
		clear(sum)
		for k, x := range mine {
			for j, y := range factors[k*cols : (k+1)*cols] {
				sum[j] += float64(x) * float64(y)
			}
		}
		for j := range row {
			row[j] = float32(float64(row[j]) + float64(l.scale*sum[j]))
		}
		tensor.Store(raw, row, w.DType)
		if _, err := to.Write(raw); err != nil {
			return err
		}
	}
	return nil
}
