// Package model reads checkpoints: a Hugging Face folder (config.json, generation_config.json,
// *.safetensors) becomes a checked description of the architecture and a table of tensors mapped
// into memory, read only.
//
// It does not compute. Files are untrusted: every number is checked against a range before it sizes
// anything, and every tensor against the file's length and the architecture's list before its bytes
// are returned. Errors name the file, the tensor or field, and the value.
//
// A new architecture is one file next to llama.go; see docs/adding-a-model.md.
package model
