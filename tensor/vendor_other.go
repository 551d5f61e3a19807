//go:build !amd64

package tensor

// prefetchAhead is not used: the portable kernels do not prefetch.
var prefetchAhead = 0
