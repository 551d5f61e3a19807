package kernel

import "math/bits"

// Tokens returns the maximum number of tokens in a tile of dt with up to the given number of panels.
func (k *Set) Tokens(dt DType, panels int) int {
	n := MaxTileTokens
	for _, f := k.widest(dt, panels, n); f == nil; _, f = k.widest(dt, panels, n) {
		n--
	}
	return n
}

// Pick returns the widest tile kernel with up to the given number of panels, and its width.
func (k *Set) Pick(dt DType, panels, tokens int) (int, func(*TileArgs)) {
	width, f := k.widest(dt, panels, tokens)
	if f == nil {
		panic("kernel: no " + k.Name + " kernel for " + dt.String())
	}
	return width, f
}

// widest is pick, but returns nil if there is no kernel.
func (k *Set) widest(dt DType, panels, tokens int) (int, func(*TileArgs)) {
	for i := bits.Len(uint(panels)) - 1; i >= 0; i-- {
		if f := k.Tile[dt][i][tokens-1]; f != nil {
			return 1 << i, f
		}
	}
	return 0, nil
}
