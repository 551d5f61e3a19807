//go:build race

package alone

func init() { raceEnabled = true }
