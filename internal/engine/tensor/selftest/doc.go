// Package selftest computes a hash of the results of the kernels in use for fixed numbers.
package selftest
