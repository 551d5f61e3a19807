//go:build !otherscale

package model

// ScaleError is 1 except in a build with -tags otherscale. That build tests that a process with
// different arithmetic is detected.
const ScaleError = 1
