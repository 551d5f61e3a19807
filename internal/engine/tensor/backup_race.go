//go:build race

package tensor

// A late thread copies memory that the next product may write, and checks afterwards whether it
// did. The race detector would report that.
const raceDetector = true
