//go:build !mutation

package collective

// brokenOrder is true only in a build with -tags mutation. That build proves that the end-to-end
// tests fail when a reduction leaves the tree's order.
const brokenOrder = false
