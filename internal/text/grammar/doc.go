// Package grammar computes which tokens may come next so that a text matches a grammar.
//
// A grammar is context-free with regular expressions as terminals, both over bytes. Its
// automaton is built on demand. A terminal's states are derivatives of its regular
// expression (package regex). A state of the automaton is a set of threads: a position inside a
// terminal, with a stack of the expressions that must follow (cfg.go). States are immutable and depend
// only on the text, so going back means keeping the older state.
//
// The allowed tokens of a state are found by walking the vocabulary as a trie. The tokens
// that stay inside one terminal are computed once per terminal, for all grammars. Only tokens that
// leave it are walked together with the expressions that follow (mask.go).
//
// Front ends: JSON Schema (schema.go and others), regular expressions (package regex),
// llama.cpp's GBNF and a dialect of Lark (package notation). Unsupported constructs are
// refused by name and never ignored, except for an unknown 'format', which is an annotation
// (Grammar.Annotations). Engine.Relax removes unsupported parts from a schema instead.
//
// The method is llguidance's (its docs/optimizations.md): a lexer by derivatives, a trie,
// and slices of plain tokens. Instead of its Earley parser there is a set of stacks with
// shared tails. This needs no separation of lexer and parser, and is exact where a greedy
// lexer is not. Unbounded ambiguity ends with ErrTooComplex.
package grammar
