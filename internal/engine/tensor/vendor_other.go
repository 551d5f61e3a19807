//go:build !amd64

package tensor

// The portable kernels do not prefetch.
var prefetchAhead, passBytes = 0, 128 << 10
