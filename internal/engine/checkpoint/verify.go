package checkpoint

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash"
	"math/bits"

	"github.com/shoal-llm/shoal/internal/engine/gguf/dequant"
	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/sys/mmap"
)

// Report is the result of Verify.
type Report struct {
	Dir    string
	Config model.Config
	Hash   string // Checkpoint.Hash
	Digest string // SHA-256 of the config and every byte of every needed tensor, independent of the files' split

	Parameters int64 // elements of the needed tensors
	Bytes      int64 // their size as stored
	Types      []TypeTotal
	Tensors    []TensorReport // in the order of a forward pass
	Extra      []string       // tensors of the files that are not needed

	KVBytesF32, KVBytesBF16 int64 // cache of one token: key and value of every KV head of every layer
}

// TypeTotal sums the tensors of one stored type.
type TypeTotal struct {
	Stored     string // as Tensor.Stored
	Tensors    int
	Parameters int64
	Bytes      int64
}

type TensorReport struct {
	Name      string
	Stored    string // as Tensor.Stored
	Shape     []int
	Bytes     int64
	NotFinite int64 // NaN and infinite elements
	Zero      bool  // an all-zero matrix, as an interrupted download leaves
}

// Verify reads every needed tensor once, in one goroutine. It calls progress, if not nil, every few
// megabytes with the bytes done and in total. It stops with ctx's error when ctx ends. The error is
// about data that could not be read; Report.Err is about wrong data.
func (c *Checkpoint) Verify(ctx context.Context, progress func(done, total int64)) (r *Report, err error) {
	if c.closed.Load() {
		return nil, model.ErrClosed
	}
	m, err := c.Recheck(ctx)
	if err != nil {
		return nil, err
	}
	fault := mmap.Guard(func() { r, err = c.verify(ctx, progress) })
	if fault == nil && err != nil {
		return nil, err
	}
	return r, c.Since(m) // reports a fault, with the file
}

func (c *Checkpoint) verify(ctx context.Context, progress func(done, total int64)) (*Report, error) {
	r := &Report{Dir: c.Dir, Config: c.Config, Hash: c.hash, Extra: c.Extra()}
	cache := c.Config.CacheElements()
	r.KVBytesF32, r.KVBytesBF16 = cache*4, cache*2

	specs := c.Config.Tensors()
	for _, s := range specs {
		t := c.must(s.Name)
		for _, part := range t.stored() {
			r.Bytes += int64(len(part.Data))
		}
	}
	digest := c.startHash("shoal checkpoint digest 1")
	var done int64
	for _, s := range specs {
		t := c.must(s.Name)
		hashTensor(digest, t)
		found := TensorReport{Name: t.Name, Stored: t.Stored(), Shape: t.Shape, Zero: len(t.Shape) > 1}
		if t.form != nil {
			found.NotFinite, found.Zero = t.form.Check()
		}
		for _, part := range t.stored() {
			found.Bytes += int64(len(part.Data))
			_, block := part.block()
			piece := 4 << 20 / int(block) * int(block)
			for data := part.Data; len(data) > 0; {
				if err := ctx.Err(); err != nil {
					return nil, fmt.Errorf("model: verifying %s: %w", c.Dir, err)
				}
				n := min(piece, len(data))
				found.scan(data[:n], part, digest)
				data, done = data[n:], done+int64(n)
				if progress != nil {
					progress(done, r.Bytes)
				}
			}
		}
		r.add(found, t.Elements())
	}
	r.Digest = hex.EncodeToString(digest.Sum(nil))
	return r, nil
}

func (r *Report) add(t TensorReport, elements int64) {
	r.Tensors = append(r.Tensors, t)
	r.Parameters += elements
	for i := range r.Types {
		if u := &r.Types[i]; u.Stored == t.Stored {
			u.Tensors, u.Parameters, u.Bytes = u.Tensors+1, u.Parameters+elements, u.Bytes+t.Bytes
			return
		}
	}
	r.Types = append(r.Types, TypeTotal{Stored: t.Stored, Tensors: 1, Parameters: elements, Bytes: t.Bytes})
}

func (t *TensorReport) scan(data []byte, of Tensor, digest hash.Hash) {
	digest.Write(data)
	if of.raw { // a part of a form, which its Check has checked
		return
	}
	bad, any := int64(0), false
	if of.blocks != 0 {
		bad, any = dequant.NotFinite(data, of.blocks)
	} else {
		bad, any = countNotFinite(data, of.DType)
	}
	t.NotFinite += bad
	t.Zero = t.Zero && !any
}

// Err lists the weights that would damage every answer, or is nil.
func (r *Report) Err() error {
	var bad model.Problems
	for _, t := range r.Tensors {
		if t.NotFinite > 0 {
			bad.List = append(bad.List, &model.Error{File: r.Dir, Tensor: t.Name, Kind: model.ErrNotFinite,
				Detail: fmt.Sprintf("%d elements are NaN or infinite", t.NotFinite)})
		}
		if t.Zero {
			bad.List = append(bad.List,
				&model.Error{File: r.Dir, Tensor: t.Name, Kind: model.ErrFormat, Detail: "holds only zeros: an interrupted download?"})
		}
	}
	return bad.In(r.Dir)
}

// countNotFinite counts the elements whose exponent is all ones, and reports whether any bit is
// set. It handles eight bytes at once: adding the exponent's lowest bit to the masked exponents
// carries into a lane's top bit only from all ones, and never out of the lane.
func countNotFinite(data []byte, dt tensor.DType) (bad int64, any bool) {
	var mask, one, top uint64
	switch dt {
	case tensor.F32:
		mask, one, top = 0x7f8000007f800000, 0x0080000000800000, 0x8000000080000000
	case tensor.BF16:
		mask, one, top = 0x7f807f807f807f80, 0x0080008000800080, 0x8000800080008000
	case tensor.F16:
		mask, one, top = 0x7c007c007c007c00, 0x0400040004000400, 0x8000800080008000
	}
	var seen uint64
	for ; len(data) >= 8; data = data[8:] {
		w := binary.LittleEndian.Uint64(data)
		seen |= w
		if hit := (w&mask + one) & top; hit != 0 {
			bad += int64(bits.OnesCount64(hit))
		}
	}
	if len(data) > 0 {
		var last [8]byte // padded with zeros, which are finite
		copy(last[:], data)
		w := binary.LittleEndian.Uint64(last[:])
		seen |= w
		bad += int64(bits.OnesCount64((w&mask + one) & top))
	}
	return bad, seen != 0
}
