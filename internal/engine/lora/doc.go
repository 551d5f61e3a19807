// Package lora reads LoRA adapters (arXiv 2106.09685) in PEFT's format: a folder with
// adapter_config.json and adapter_model.safetensors. For some matrices W [out, in] of a model an
// adapter has A [r, in] and B [out, r], and the model uses W + s B A with s = alpha/r, or
// alpha/sqrt(r) with use_rslora.
//
// Files are untrusted: every number is bounded before it sizes anything, and unsupported settings are
// refused by name.
package lora
