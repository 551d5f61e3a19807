package kernel

import "golang.org/x/sys/cpu"

// vendor is CPUID leaf 0: the maker's name in three pieces.
func vendor() (b, d, c uint32)

// PrefetchAhead is the prefetch distance in a single pass over the weights, in bytes. Intel's
// prefetchers gain a quarter from it (measured on a Sapphire Rapids: Q4_0 71 -> 88 % of the
// bandwidth). AMD's with AVX-512 follow a rising stream on their own and lose a third with it (Zen
// 4: Q8_0 97 -> 65 %). AMD's without AVX-512 reach less than half of the bandwidth alone (Zen 3:
// BF16 40 -> 68 %, Q8_0 36 -> 67 %, Q4_0 29 -> 74 %, one thread).
//
// PassBytes is the number of bytes of weights in one of several passes over many tokens, so that
// they stay in the L2 cache between passes. When many cores wait for memory, small requests share
// it more evenly (Emerald Rapids, 16 threads, 16 tokens of Q8_0: 9.1 ms with 128 KB, 7.3 with 32
// KB; two threads, and Zen 4: equal or worse).
var PrefetchAhead, PassBytes = func() (ahead, pass int) {
	b, d, c := vendor()
	switch amd := b == 0x68747541 && d == 0x69746e65 && c == 0x444d4163; { // AuthenticAMD
	case !amd:
		return 4 << 10, 32 << 10
	case cpu.X86.HasAVX512F:
		return 0, 128 << 10
	}
	return 4 << 10, 128 << 10
}()
