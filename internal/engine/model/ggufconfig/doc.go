// Package ggufconfig reads the config of a model from the metadata of a GGUF file. It also converts the
// names of tensors to those of a Hugging Face folder.
package ggufconfig
