// read_all reads n vectors of 16 bytes, for the bandwidth of the card's memory.
KERNEL read_all(const uint4 *p, uint64_t n, uint32_t *out) {
  uint32_t x = 0;
  uint64_t i = threadIdx.x + (uint64_t)blockIdx.x * blockDim.x, step = (uint64_t)blockDim.x * gridDim.x;
  for (; i + 3 * step < n; i += 4 * step) {
    uint4 a = load_once(p + i), b = load_once(p + i + step), c = load_once(p + i + 2 * step), d = load_once(p + i + 3 * step);
    x ^= a.x ^ a.y ^ a.z ^ a.w ^ b.x ^ b.y ^ b.z ^ b.w ^ c.x ^ c.y ^ c.z ^ c.w ^ d.x ^ d.y ^ d.z ^ d.w;
  }
  if (x == 0x12345678) *out = x; // keeps the reads
}
