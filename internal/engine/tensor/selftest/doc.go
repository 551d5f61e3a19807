// Package selftest computes a hash of what the kernels in use make of fixed numbers.
package selftest
