//go:build otherscale

package layer

// scaleError makes attention scores 2 % larger. Only test/cluster, TestOtherArithmetic, builds it;
// it is never released.
const scaleError = 1.02
