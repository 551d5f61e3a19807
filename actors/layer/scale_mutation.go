//go:build otherscale

package layer

// scaleError makes attention scores 2 % larger. It is there for test/cluster,
// TestOtherArithmetic, and never ships.
const scaleError = 1.02
