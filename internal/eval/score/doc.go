// Package score compares a model's answer with the references of a benchmark. Every function is
// pure and returns a share from 0 to 1. The rules are those of the benchmarks' own programs, so
// that a result can be compared with published ones:
//
//	LongBench v1 and v2, Infinite-Bench, RULER, GSM8K, MATH, and HumanEval's pass@k
//
// Chinese texts are compared by characters. Infinite-Bench does the same. LongBench cuts them into
// words with a dictionary, so its Chinese scores differ.
package score
