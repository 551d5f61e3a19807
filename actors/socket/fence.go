//go:build !unfenced

package socket

// fenced is false only in a build with -tags unfenced, which shows that runs under
// faults go red when messages of other epochs are taken.
const fenced = true
