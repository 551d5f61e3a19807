// Package gguf reads the model files of llama.cpp: one file with typed metadata, a table of tensors
// and their data (github.com/ggml-org/ggml, docs/gguf.md, versions 2 and 3, little endian).
//
// It reads the container only. Package model turns metadata into a config and blocks into numbers.
// Package tokenizer turns metadata into a tokenizer.
//
// Files are untrusted. Every count, length and offset is checked against the file's size before
// memory is allocated for it. Returned values have been checked, so reading one cannot fail half
// way.
package gguf
