// Package grammar says which tokens may come next, so that a text fits a grammar.
//
// A grammar is context-free with regular expressions for terminals, both over bytes. Its
// automaton is made as texts need it: a terminal's states are derivatives of its regular
// expression (regex.go), a state of the whole is a set of terminals in the middle of
// which the text may be, each with a stack of what must follow (cfg.go). States are
// immutable and functions of the text alone: to go back is to keep the older one.
//
// The tokens that a state allows are found by a walk of the vocabulary as a trie. What a
// terminal says of the vocabulary by itself is worked out once, for all grammars, and
// only tokens that leave it are walked with what follows (mask.go).
//
// Front ends: JSON Schema (schema.go and following), regular expressions (pattern.go),
// llama.cpp's GBNF (gbnf.go), and a dialect of Lark's (lark.go). What cannot be enforced
// is refused with its name, never left out, but for an unknown 'format', which is an
// annotation (Grammar.Annotations). Engine.Relax takes such parts from a schema instead.
//
// The recipe is llguidance's (docs/optimizations.md there): lexer by derivatives, trie,
// slices of plain tokens. In place of its Earley parser stands a set of stacks with
// shared tails, which needs no separation of lexer and parser and is exact where a
// greedy lexer is not; ambiguity without bound ends with ErrTooComplex.
package grammar
