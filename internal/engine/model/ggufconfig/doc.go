// Package ggufconfig reads the config of a model from the metadata of a GGUF file, and the names that
// its tensors have in a Hugging Face folder.
package ggufconfig
