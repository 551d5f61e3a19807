//go:build !otherscale

package layer

// scaleError is something else only in a build with -tags otherscale, which shows that a
// process of another arithmetic is found out.
const scaleError = 1
