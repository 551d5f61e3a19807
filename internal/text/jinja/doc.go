// Package jinja renders the chat templates of Hugging Face models: the part of
// Jinja2 that they use, with the settings that transformers gives it
// (trim_blocks, lstrip_blocks, loop controls, sandbox, its own tojson).
//
// A template comes with a model and is code from a file; values come from a
// request. Neither is trusted: steps, bytes and depth are limited, nothing can
// be reached but the values passed in, and every string remembers which of its
// bytes came from the request (Str), so that a caller can tell a control token
// that the template wrote from one that a user spelled.
//
// The reference is Python's jinja2 3.1; testdata/make_goldens.py renders what
// the tests compare with. Values are Python's: None is nil, then bool, int64,
// *big.Int (only from JSON: printed and compared, no arithmetic), float64, Str,
// *List, *Dict.
package jinja
