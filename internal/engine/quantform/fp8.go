package quantform

import (
	"fmt"

	"github.com/shoal-llm/shoal/internal/engine/gguf/dequant"
)

// FP8: elements are float8_e4m3fn with one scale for the matrix, for each row, or for each block of
// rows and columns:
//
//	w[r][c] = float32(e4m3[r][c] * scale[r/rows][c/columns])
//
// The fine-grained form of DeepSeek V3 (arXiv 2412.19437, section 3.3.2) names the scales
// weight_scale_inv, which multiplies too. compressed-tensors, ModelOpt and FBGEMM name them
// weight_scale. Blocks at the edges are smaller.
var fp8Form = &Form{
	Name: "fp8_e4m3", Methods: []string{"fp8", "fbgemm_fp8", "compressed-tensors", "modelopt"},
	Codes: ".weight", Types: []string{"F8_E4M3"}, Parts: []string{".weight_scale_inv", ".weight_scale"},
	Becomes: "bf16, each element rounded to 8 bits of precision; exact if scales are powers of two",
	build:   buildFP8,
}

// scaleTypes are the types of FP8 scales. F8_E8M0 and U8 are powers of two.
var scaleTypes = []string{"F32", "BF16", "F16", "F8_E8M0", "U8"}

func buildFP8(s *Settings, m *module) (*Matrix, error) {
	suffix := ".weight_scale_inv"
	if s.Method == torchao {
		suffix = torchaoScale
	}
	scale, ok := m.part(suffix)
	if !ok && s.Method != torchao {
		if plain, found := m.part(".weight_scale"); found || s.Method != "fp8" {
			suffix, scale, ok = ".weight_scale", plain, found
		}
	}
	rows, cols := m.codes.Shape[0], m.codes.Shape[1]
	if s.Method == "modelopt" && s.FP8Block == [2]int{} {
		if blocks, is := modelOptBlocks(scale, rows, cols); is {
			scale, s = blocks, &Settings{Method: s.Method, FP8Block: [2]int{modelOptBlock, modelOptBlock}}
		}
	}
	block, want := s.FP8Block, fmt.Sprintf("a single scale, or F32 %v", []int{rows, 1})
	if block != [2]int{} {
		want = fmt.Sprintf("F32 %v for blocks of %v", []int{(rows + block[0] - 1) / block[0], (cols + block[1] - 1) / block[1]}, block)
	}
	switch {
	case ok && block != [2]int{} && scale.shaped((rows+block[0]-1)/block[0], (cols+block[1]-1)/block[1], scaleTypes...):
	case ok && block != [2]int{} && s.Method == "fp8":
		return nil, m.bad(suffix, scale, ok, want)
	case ok && scale.is(1, scaleTypes...):
		block = [2]int{rows, cols}
	case ok && scale.is(rows, scaleTypes...) && scale.Shape[0] == rows:
		block = [2]int{1, cols}
	default:
		return nil, m.bad(suffix, scale, ok, want)
	}
	width := (cols + block[1] - 1) / block[1]
	codes := m.codes.Data
	out := &Matrix{Rows: rows, Cols: cols, Parts: []Part{*m.codes, *scale}}
	out.Row = func(dst []float32, r, lo int) {
		line, first := codes[r*cols:(r+1)*cols], r/block[0]*width
		for at := lo; at < lo+len(dst); {
			end := min(lo+len(dst), (at/block[1]+1)*block[1])
			factor := scale.float(first + at/block[1])
			for i, b := range line[at:end] {
				dst[at-lo+i] = dequant.E4M3[b] * factor
			}
			at = end
		}
	}
	out.ranges = func(part int, r, c span) (span, span) {
		if part == 0 {
			return r, c
		}
		return r.per(block[0]), c.per(block[1])
	}
	out.check = fp8Check(codes, scale)
	return out, nil
}

// modelOptBlock is the number of rows and of columns of a block of ModelOpt's FP8_PB_WO.
const modelOptBlock = 128

// modelOptBlocks returns the scales of ModelOpt's blocks as a matrix. Files also have them in the shape (m, 1, n, 1).
func modelOptBlocks(scale *Part, rows, cols int) (*Part, bool) {
	blocks := *scale
	if s := scale.Shape; len(s) == 4 && s[1] == 1 && s[3] == 1 {
		blocks.Shape = []int{s[0], s[2]}
	}
	m, n := (rows+modelOptBlock-1)/modelOptBlock, (cols+modelOptBlock-1)/modelOptBlock
	return &blocks, blocks.shaped(m, n, scaleTypes...)
}

// fp8Check returns a function that counts the NaN codes of an E4M3 matrix and its scales that are not
// finite. The function also reports whether all codes or all scales are zero.
func fp8Check(codes []byte, scale *Part) func() (int64, bool) {
	return func() (bad int64, zero bool) {
		zero = true
		for _, b := range codes {
			if b&0x7f == 0x7f {
				bad++
			}
			zero = zero && b&0x7f == 0
		}
		n, none := scale.notFinite()
		return bad + n, zero || none
	}
}
