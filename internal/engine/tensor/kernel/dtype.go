package kernel

import (
	"fmt"
	"sort"
	"strings"
)

// DType is the storage type of numbers in a weight, a cache block or a checkpoint.
type DType uint8

// The known types. Q8_0, Q4_0 and IQ4_NL are GGUF's: blocks of 32 values that share one float16
// scale. A value of Q4_0 is one of 16 equidistant steps. A value of IQ4_NL is one of 16 that are denser
// where weights are frequent, which gives a smaller error at the same size. Int8 has one float32 scale per
// row (cache rows only). Int4 is Q4_0 with a zero point of 4 bits for each block, as in GPTQ and AWQ. MXFP4
// has the values of the OCP format; its scales are float16 here.
const (
	F32 DType = iota
	BF16
	F16
	Q8_0
	Q4_0
	Int8
	IQ4_NL
	Int4
	MXFP4
)

var dtypes = [...]struct {
	name        string
	aliases     []string
	block, size int // values per block, bytes per block
}{
	F32:  {"f32", []string{"float32", "float"}, 1, 4},
	BF16: {"bf16", []string{"bfloat16"}, 1, 2},
	F16:  {"f16", []string{"float16", "half", "fp16"}, 1, 2},
	Q8_0: {"q8_0", []string{"q8"}, 32, 34},
	Q4_0: {"q4_0", []string{"q4"}, 32, 18},
	Int8: {"int8", []string{"i8"}, 1, 1},

	IQ4_NL: {"iq4_nl", []string{"iq4"}, 32, 18},
	Int4:   {"int4", nil, 32, 19},
	MXFP4:  {"mxfp4", nil, 32, 18},
}

// String returns the name that ParseDType accepts.
func (d DType) String() string {
	if int(d) < len(dtypes) {
		return dtypes[d].name
	}
	return fmt.Sprintf("dtype(%d)", uint8(d))
}

// Valid reports whether d is a known type.
func (d DType) Valid() bool { return int(d) < len(dtypes) }

// BytesPerRow returns the size of n consecutive values in a checkpoint file. A partial last block takes
// the space of a full one.
func (d DType) BytesPerRow(n int) int {
	t := dtypes[d]
	return (n + t.block - 1) / t.block * t.size
}

// Size returns the number of bytes of a block of values.
func (d DType) Size() int { return dtypes[d].size }

// ParseDType parses a type by its name or a usual alias, in any case ("BF16", "bfloat16").
func ParseDType(s string) (DType, error) {
	want := strings.ToLower(strings.TrimSpace(s))
	var known []string
	for d, t := range dtypes {
		if t.name == want {
			return DType(d), nil
		}
		for _, a := range t.aliases {
			if a == want {
				return DType(d), nil
			}
		}
		known = append(known, t.name)
	}
	sort.Strings(known)
	return 0, fmt.Errorf("kernel: unknown dtype %q; known: %s", s, strings.Join(known, ", "))
}

// Quantized reports whether a weight of type dt has blocks that share a scale.
func Quantized(dt DType) bool {
	return dt == Q8_0 || dt == Q4_0 || dt == IQ4_NL || dt == Int4 || dt == MXFP4
}
