//go:build !amd64

package kernel

// The portable kernels do not prefetch.
var PrefetchAhead, PassBytes = 0, 128 << 10
