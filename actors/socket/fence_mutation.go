//go:build unfenced

package socket

// fenced = false makes a socket accept messages of every epoch. Only test/cluster,
// TestFencingMutationIsCaught, builds it; it is never released.
const fenced = false
