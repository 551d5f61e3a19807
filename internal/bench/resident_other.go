//go:build !linux

package bench

func resetPeak() int64    { return 0 }
func peakResident() int64 { return 0 }
