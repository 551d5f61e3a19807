//go:build mutation

package collective

// mutated makes every reduction sum its parts from left to right, as a simple all-reduce does. The bits then
// depend on the number of ranks. TestMutationIsCaught of test/cluster shows with such a build that the
// end-to-end tests fail when a reduction leaves the tree's order. No release has this tag.
const mutated = true
