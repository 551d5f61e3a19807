//go:build race

package layer

func init() { raceEnabled = true }
