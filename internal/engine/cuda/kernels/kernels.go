// Package kernels holds the kernels for NVIDIA's cards: their sources in CUDA C++, and PTX that a
// driver compiles for its card. The PTX is generated (gen); a test compares the hash of the sources
// in its head with the sources.
//
// Kernels compute in the canonical order of package tensor, so a card gives the bits of a CPU.
// Every operation has explicit rounding; approximations, contraction and flushing of subnormals
// are refused by a test.
package kernels

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"sync"
)

//go:embed *.cu *.h
var sources embed.FS

//go:embed kernels.ptx.gz
var packed []byte

// PTX returns the kernels for compute capability 8.0 and newer.
var PTX = sync.OnceValue(func() []byte {
	z, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		panic(err) // gen wrote it
	}
	text, err := io.ReadAll(z)
	if err != nil {
		panic(err)
	}
	return text
})

// Names are the kernels.
var Names = []string{
	"add_bias",
	"add_rows",
	"attend_bf16",
	"attend_bf16_4",
	"attend_f32",
	"attend_f32_4",
	"attend_fold",
	"attend_int8",
	"attend_int8_4",
	"attend_prompt_bf16",
	"attend_prompt_bf16_64",
	"attend_prompt_f32",
	"attend_prompt_f32_64",
	"attend_prompt_int8",
	"attend_prompt_int8_64",
	"attend_scores_bf16",
	"attend_scores_f32",
	"attend_scores_int8",
	"best_of_parts",
	"best_of_rows",
	"bf16_product",
	"bf16_product_8",
	"copy_rows",
	"embed",
	"f16_product",
	"f16_product_8",
	"f32_product",
	"f32_product_8",
	"function_of_bits",
	"gate_rows",
	"gather_rows",
	"join_experts",
	"mass_add_bf16",
	"mass_add_f32",
	"mass_add_int8",
	"mass_sums_bf16",
	"mass_sums_f32",
	"mass_sums_int8",
	"pack_rounded",
	"q4_product",
	"q4_product_16",
	"q4_product_32",
	"q4_product_64",
	"q4_product_8",
	"q4_product_tiled",
	"q4_product_tiled_shared",
	"q8_product",
	"q8_product_16",
	"q8_product_32",
	"q8_product_64",
	"q8_product_8",
	"q8_product_tiled",
	"q8_product_tiled_shared",
	"quantize_rows",
	"read_all",
	"restore_rows_bf16",
	"restore_rows_f32",
	"restore_rows_int8",
	"rms_norm",
	"rms_norm_split",
	"rope_write_bf16",
	"rope_write_f32",
	"rope_write_int8",
	"scale_rows",
	"unpack_rounded",
	"weigh_rows",
}

// Main is the source that includes the others.
const Main = "kernels.cu"

// Options are those of NVRTC.
var Options = []string{"--gpu-architecture=compute_80", "--std=c++17", "--fmad=false", "--ftz=false", "--prec-div=true", "--prec-sqrt=true"}

// SourceNames lists the files that Main includes, sorted.
func SourceNames() []string {
	names, err := fs.Glob(sources, "*")
	if err != nil {
		panic(err) // the pattern is valid
	}
	return slices.DeleteFunc(names, func(n string) bool { return n == Main })
}

// Source returns a source by its name.
func Source(name string) string {
	b, err := sources.ReadFile(name)
	if err != nil {
		panic(err) // embedded
	}
	return string(b)
}

// SourceHash returns the SHA-256 of the sources and the options.
func SourceHash() string {
	h := sha256.New()
	for _, name := range append(SourceNames(), Main) {
		fmt.Fprintf(h, "%s %d\n%s", name, len(Source(name)), Source(name))
	}
	fmt.Fprint(h, strings.Join(Options, " "))
	return fmt.Sprintf("%x", h.Sum(nil))
}

// Head returns the first line of the PTX.
func Head(hash string) string {
	return "// Code generated from kernels.cu, sources " + hash + ". DO NOT EDIT.\n"
}
