//go:build !amd64

package tensor

func implementations() []*kernels { return portableOnly }

var portableOnly = []*kernels{portableKernels()}

func pause() {}

func addInPlace(dst, x []float32) { portableAdd(dst, x) }
