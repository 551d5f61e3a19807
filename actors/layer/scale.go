//go:build !otherscale

package layer

// scaleError is 1 except in a build with -tags otherscale. That build tests that a process with
// different arithmetic is detected.
const scaleError = 1
