//go:build race

package tensor

// A late thread copies what the next product may write, and looks afterwards whether it did.
const raceDetector = true
