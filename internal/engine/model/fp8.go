package model

import (
	"encoding/binary"
	"fmt"
	"math"
	"strings"

	"github.com/shoal-llm/shoal/internal/engine/gguf/dequant"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// FP8 as in the published DeepSeek V3 (arXiv 2412.19437, section 3.3.2): a matrix of float8_e4m3fn
// (sign, 4 bits of exponent with bias 7, 3 of mantissa; no infinity, NaN is all ones). For every
// block of weight_block_size elements, NAME_scale_inv holds a float32 factor:
//
//	w[r][c] = float32(e4m3(r, c) * scale_inv[r/rows][c/columns])
//
// Blocks at the edges are smaller. The weights are read exactly like this. Activations are not
// rounded to FP8, which the trained kernels do for speed.

// fp8Stored is the safetensors type, and fp8Suffix the suffix of the scales' name.
const (
	fp8Stored = "F8_E4M3"
	fp8Suffix = "_scale_inv"
)

type fp8Scales struct {
	data       []byte      // float32 (ceil(matrix rows/rows), width)
	rows, cols int         // of a block
	width      int         // number of blocks in a row
	home       *weightFile // the file of data
}

// row writes columns [lo, hi) of row r.
func (s *fp8Scales) row(dst []float32, data []byte, r, cols, lo, hi int) {
	line, scales := data[r*cols:(r+1)*cols], s.data[r/s.rows*s.width*4:]
	for at := lo; at < hi; {
		end := min(hi, (at/s.cols+1)*s.cols)
		scale := math.Float32frombits(binary.LittleEndian.Uint32(scales[at/s.cols*4:]))
		for i, b := range line[at:end] {
			dst[at-lo+i] = dequant.E4M3[b] * scale
		}
		at = end
	}
}

// takeScales attaches the scales to every FP8 tensor and removes them from the list of tensors.
func (c *Checkpoint) takeScales() error {
	var bad Problems
	for _, name := range c.names() {
		p := c.at[name]
		if p.stored != fp8Stored || c.Config.FP8Block == ([2]int{}) {
			continue
		}
		s, ok := c.at[name+fp8Suffix]
		scales, detail := pairScales(p, s, ok, c.Config.FP8Block)
		if detail != "" {
			bad.List = append(bad.List, &Error{File: p.path, Tensor: name, Kind: ErrMismatch, Detail: detail})
			continue
		}
		p.scales, p.weight, p.DType = scales, true, tensor.BF16
		c.at[name] = p
		delete(c.at, name+fp8Suffix)
	}
	return bad.in(c.Dir)
}

// pairScales returns the scales s of the matrix p, or what is wrong with them.
func pairScales(p, s place, found bool, block [2]int) (*fp8Scales, string) {
	if len(p.Shape) != 2 {
		return nil, fmt.Sprintf("is %s of shape %v; only matrices are stored so", p.stored, p.Shape)
	}
	blocks := [2]int{(p.Shape[0] + block[0] - 1) / block[0], (p.Shape[1] + block[1] - 1) / block[1]}
	switch {
	case !found:
		return nil, fmt.Sprintf("is %s without the %s%s that scales it", p.stored, p.Name[strings.LastIndexByte(p.Name, '.')+1:], fp8Suffix)
	case s.stored != "F32" || len(s.Shape) != 2 || s.Shape[0] != blocks[0] || s.Shape[1] != blocks[1]:
		return nil, fmt.Sprintf("of shape %v, in blocks of %v, has scales that are %s of shape %v; want F32 %v", p.Shape, block, s.stored, s.Shape, blocks)
	}
	return &fp8Scales{data: s.Data, home: s.home, rows: block[0], cols: block[1], width: blocks[1]}, ""
}

// notFinite counts the scales that are NaN or infinite.
func (s *fp8Scales) notFinite() int64 {
	bad, _ := countNotFinite(s.data, tensor.F32)
	return bad
}

// readQuantised accepts FP8 in blocks and MXFP4, and refuses every other method.
func readQuantised(f *fields, c *Config) {
	for _, key := range []string{"quantization_config", "compression_config"} {
		q := f.Object(key)
		if q == nil {
			continue
		}
		method := q.Text("quant_method", "an unnamed method")
		if key == "quantization_config" && readMXFP4(f, c, method) {
			continue
		}
		if key != "quantization_config" || method != "fp8" {
			f.fail(key, ErrUnsupported, "weights quantised by %q are not supported; use the original F32, BF16 or F16 checkpoint (or FP8 in blocks) and quantise on load", clip(method))
			return
		}
		q.OneOf("fmt", "e4m3", "e4m3", "float8_e4m3fn")
		q.OneOf("activation_scheme", "dynamic", "dynamic") // static ones have their own scales
		var block []int64
		q.get("weight_block_size", &block, "a list of two sizes")
		switch {
		case q.err != nil:
		case block == nil:
			q.fail("weight_block_size", ErrUnsupported, "missing: one scale for a whole matrix is not supported")
		case len(block) != 2 || block[0] < 1 || block[1] < 1 || block[0] > maxFP8Block || block[1] > maxFP8Block:
			q.fail("weight_block_size", ErrOutOfRange, "%s; want two sizes in 1..%d", clip(fmt.Sprint(block)), maxFP8Block)
		default:
			c.FP8Block = [2]int{int(block[0]), int(block[1])}
		}
		if f.err == nil {
			f.err = q.err
		}
	}
}

const maxFP8Block = 1 << 16
