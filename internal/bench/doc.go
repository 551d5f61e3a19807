// Package bench measures this program and this machine. Every figure is printed next to the ceiling
// that was measured in the same run.
package bench
