//go:build !mutation

package collective

// mutated is true only in a build with -tags mutation (mutation_enabled.go).
const mutated = false
