//go:build !amd64

package kernel

// All lists the implementations of this machine.
func All() []*Set { return portableOnly }

var portableOnly = []*Set{portableKernels()}

func pause() {}

// AddInPlace is Add for slices on the stack, which a call through Active would move to the heap.
func AddInPlace(dst, x []float32) { portableAdd(dst, x) }
