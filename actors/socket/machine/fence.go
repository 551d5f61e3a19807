//go:build !unfenced

package machine

// fenced is false only in a build with -tags unfenced. That build tests that the fault simulation
// fails if a socket accepts messages of other epochs.
const fenced = true
