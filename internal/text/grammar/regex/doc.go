// Package regex has regular expressions over bytes, and automata of them that are built on demand.
//
// A Store holds expressions with concatenation, alternatives, repetition, intersection and
// complement. An expression is also a state: Step gives the state after one byte, its derivative.
// Pattern compiles the regular part of the expressions of ECMA 262, Python and Rust. Runes are sets
// of characters, and an Encoder spells them as UTF-8 or inside JSON strings. Number gives decimals
// between bounds.
//
// A Store panics with TooLarge at its limits. It is not safe for concurrent use.
package regex
