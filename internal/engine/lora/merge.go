package lora

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/safetensors"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/sys/mmap"
)

// Merge writes the weights of base with an adapter merged to the existing folder out:
// model.safetensors alone. A merged row is summed in double precision and rounded once to W's
// stored type.
func Merge(base, adapter, out string) (err error) {
	ck, err := checkpoint.Open(base)
	if err != nil {
		return err
	}
	defer ck.Close()
	if files := ck.Files(); ck.Random() || len(files) > 0 && strings.EqualFold(filepath.Ext(files[0]), ".gguf") {
		return &model.Error{File: base, Kind: model.ErrUnsupported,
			Detail: "a LoRA adapter is merged into a Hugging Face folder, not into a GGUF file or random weights"}
	}
	a, err := Open(adapter)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, a.Close()) }()
	m := merge{pairs: map[string]*Pair{}}
	for i := range a.Pairs {
		m.pairs[a.Pairs[i].Module+".weight"] = &a.Pairs[i]
	}
	defer func() {
		for _, w := range m.base {
			err = errors.Join(err, w.Close())
		}
	}()
	for _, path := range ck.Files() {
		w, err := openWeights(path)
		if err != nil {
			return err
		}
		m.base = append(m.base, w)
	}
	if err := m.fits(a.file.Path); err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(out, "model.safetensors"), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return fmt.Errorf("lora: merging: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	mark, err := ck.Recheck(context.Background())
	if err != nil {
		return err
	}
	if fault := mmap.Guard(func() { err = m.write(f) }); fault != nil {
		err = fault
	}
	return errors.Join(err, ck.Since(mark))
}

// merge is the merge of an adapter's pairs into the files of its base.
type merge struct {
	base  []*weights
	pairs map[string]*Pair // by the name of the tensor
}

// fits compares the adapter with the tensors of its base.
func (m *merge) fits(path string) error {
	known := map[string]*safetensors.Entry{}
	for _, w := range m.base {
		for i := range w.entries {
			known[w.entries[i].Name] = &w.entries[i]
		}
	}
	var bad []error
	for name, p := range m.pairs {
		fail := func(kind error, format string, args ...any) {
			bad = append(bad, &model.Error{File: path, Tensor: name, Kind: kind, Detail: fmt.Sprintf(format, args...)})
		}
		e := known[name]
		switch {
		case e == nil:
			fail(model.ErrMismatch, "is not in the base: is this another model's adapter?")
		case weightTypes[e.Stored] == 0 && e.Stored != "F32":
			fail(model.ErrUnsupported, "is stored as %s; only F32, BF16 and F16 can be merged", e.Stored)
		case !slices.Equal(e.Shape, []int{p.B.Rows(), p.A.Cols()}):
			fail(model.ErrMismatch, "has shape %v in the base, [%d %d] in the adapter", e.Shape, p.B.Rows(), p.A.Cols())
		}
	}
	return problems(path, bad)
}

// problems joins errors in the order of their texts.
func problems(path string, list []error) error {
	if len(list) == 0 {
		return nil
	}
	slices.SortFunc(list, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return &model.Problems{Dir: path, List: list}
}

// write writes one file with the tensors of all files of the base.
func (m *merge) write(to io.Writer) error {
	type header struct {
		DType  string   `json:"dtype"`
		Shape  []int    `json:"shape"`
		Offset [2]int64 `json:"data_offsets"`
	}
	all, at := map[string]any{"__metadata__": map[string]string{"format": "pt"}}, int64(0)
	for _, w := range m.base {
		for _, e := range w.entries {
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
	if _, err := to.Write(append(binary.LittleEndian.AppendUint64(nil, uint64(len(head))), head...)); err != nil {
		return fmt.Errorf("lora: merging: %w", err)
	}
	for _, w := range m.base {
		for _, e := range w.entries {
			data := w.tensors[e.Begin:e.End:e.End]
			if p := m.pairs[e.Name]; p == nil {
				_, err = to.Write(data)
			} else {
				err = p.merge(to, checkpoint.Tensor{Name: e.Name, DType: weightTypes[e.Stored], Shape: e.Shape, Data: data})
			}
			if err != nil {
				return fmt.Errorf("lora: merging: %w", err)
			}
		}
	}
	return nil
}

// merge writes w + scale B A, row by row. Products of two float32 are exact in float64, so fused
// multiply-add and separate operations give the same bits.
func (p *Pair) merge(to io.Writer, w checkpoint.Tensor) error {
	rows, cols, rank := w.Rows(), w.Cols(), p.Rank()
	factors := make([]float32, rank*cols)
	for k := range rank {
		p.A.Row(factors[k*cols:(k+1)*cols], k, 0, cols)
	}
	row, mine, sum, raw := make([]float32, cols), make([]float32, rank), make([]float64, cols), make([]byte, w.DType.BytesPerRow(cols))
	for r := range rows {
		w.Row(row, r, 0, cols)
		p.B.Row(mine, r, 0, rank)
		clear(sum)
		for k, x := range mine {
			for j, y := range factors[k*cols : (k+1)*cols] {
				sum[j] += float64(x) * float64(y)
			}
		}
		for j := range row {
			row[j] = float32(float64(row[j]) + float64(p.scale*sum[j]))
		}
		tensor.Store(raw, row, w.DType)
		if _, err := to.Write(raw); err != nil {
			return err
		}
	}
	return nil
}
