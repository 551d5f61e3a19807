package tensor

import "golang.org/x/sys/cpu"

// vendor is CPUID leaf 0: the maker's name in three pieces.
func vendor() (b, d, c uint32)

// prefetchAhead is how far ahead of the one pass over the weights to prefetch, in
// bytes. Intel's prefetchers gain a quarter from help (measured on a Sapphire
// Rapids: Q4_0 71 -> 88 % of the bandwidth). AMD's with AVX-512 follow a rising stream
// on their own and lose a third to it (Zen 4: Q8_0 97 -> 65 %); those without reach
// less than half of the bandwidth alone (Zen 3: BF16 40 -> 68 %, Q8_0 36 -> 67 %, Q4_0
// 29 -> 74 %, one thread).
var prefetchAhead = func() int {
	b, d, c := vendor()
	if b == 0x68747541 && d == 0x69746e65 && c == 0x444d4163 { // AuthenticAMD
		if !cpu.X86.HasAVX512F {
			return 4 << 10
		}
		return 0
	}
	return 8 << 10
}()
