// Package bench measures this machine and this program on it: every figure is
// printed beside the ceiling that was measured in the same run.
package bench
