//go:build mutation

package collective

// brokenOrder makes every reduction sum its parts from left to right, as a
// simple all-reduce does: the bits then depend on how many ranks there are. It
// is there for test/cluster, TestMutationIsCaught, and never ships.
const brokenOrder = true
