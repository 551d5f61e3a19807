//go:build unfenced

package socket

// fenced false lets a socket take messages of every epoch for those of its own. It
// is there for test/cluster, TestFencingMutationIsCaught, and never ships.
const fenced = false
