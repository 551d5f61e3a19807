// Package jinja renders the chat templates of Hugging Face models. It implements the part
// of Jinja2 that they use, with the settings of transformers (trim_blocks, lstrip_blocks,
// loop controls, sandbox, its own tojson).
//
// A template is code from a model's files, and values come from a request. Neither is
// trusted. Steps, bytes and depth are limited, and a template can access only the given
// values. Every string records which of its bytes came from the request (Str). So a
// caller can distinguish control tokens that the template wrote from user text.
//
// The reference is Python's jinja2 3.1; testdata/make_goldens.py renders the expected
// results. Values are Python's (package python).
package jinja
