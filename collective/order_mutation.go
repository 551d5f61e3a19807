//go:build mutation

package collective

// brokenOrder makes every reduction sum its parts from left to right, as a simple all-reduce does.
// The bits then depend on the number of ranks. TestMutationIsCaught of test/cluster uses it; it
// never ships.
const brokenOrder = true
