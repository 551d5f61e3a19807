// Package gguf reads the container that llama.cpp keeps models in: one file of
// typed metadata, a table of tensors and their data (github.com/ggml-org/ggml,
// docs/gguf.md, versions 2 and 3, little endian).
//
// It knows the file, not the model: package model turns metadata into a config
// and blocks into numbers, package tokenizer turns metadata into a tokenizer.
//
// Files come from strangers. Every count, length and offset is checked against
// the bytes that are there before anything is allocated for it; what a caller
// gets has been checked, so that reading a value cannot fail half way.
package gguf
