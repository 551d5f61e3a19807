// Package model reads checkpoints: a Hugging Face folder (config.json,
// generation_config.json, *.safetensors) becomes a checked description of the
// architecture and a table of tensors mapped into memory, read only.
//
// Nothing here computes. A file from outside is data to be doubted: every
// number is checked against a stated range before it sizes anything, every
// tensor against the file's real length and the architecture's table before
// its bytes are handed out. Errors name the file, the tensor or field, and the
// value.
//
// A new architecture is one file beside llama.go; docs/adding-a-model.md walks through
// it.
package model
