//go:build !mutation

package collective

// brokenOrder is true only in a build with -tags mutation, which shows that the
// end-to-end tests go red when a reduction leaves the tree's order.
const brokenOrder = false
