// Package notation reads grammars in GBNF, llama.cpp's notation, and in a dialect of Lark.
//
// The result is the same for both: named rules whose terminals are regular expressions. A rule that
// starts with itself is rewritten as a repetition, because grammars are matched from left to right.
// Unsupported constructs are refused with their line.
package notation
