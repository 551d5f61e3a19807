//go:build unfenced

package machine

// fenced = false makes a socket accept messages of every epoch. Only test/cluster,
// TestFencingMutationIsCaught, builds it; it is never released.
const fenced = false
