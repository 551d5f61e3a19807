//go:build otherscale

package model

// ScaleError makes attention scores 2 % larger. Only test/cluster, TestOtherArithmetic, builds it;
// it is never released.
const ScaleError = 1.02
