// What ranks exchange, between the card's matrices and packed rows, which may lie in the host's memory.

// copy_rows copies rows of n words, from[i*from_ld] to to[i*to_ld].
KERNEL copy_rows(uint32_t *to, uint32_t to_ld, const uint32_t *from, uint32_t from_ld, uint32_t n) {
  uint32_t c = threadIdx.x + blockIdx.x * blockDim.x;
  if (c < n) to[(uint64_t)blockIdx.y * to_ld + c] = from[(uint64_t)blockIdx.y * from_ld + c];
}

// Words of a block of tensor.Quantize: 32 bytes, their scale, and their sum times start.
#define RECORD 10

// pack_rounded copies n blocks of rows of rounded activations (rows, all blocks), from block `first`
// on, to records (rows, n).
KERNEL pack_rounded(uint32_t *to, const uint32_t *bytes, const uint32_t *scales, uint32_t all, uint32_t first, int start, uint32_t n) {
  uint32_t b = threadIdx.x + blockIdx.x * blockDim.x;
  if (b >= n) return;
  uint64_t at = (uint64_t)blockIdx.y * all + first + b;
  to += ((uint64_t)blockIdx.y * n + b) * RECORD;
  int sum = 0;
  for (int i = 0; i < 8; i++) to[i] = bytes[at * 8 + i], sum = dot4(bytes[at * 8 + i], 0x01010101, sum);
  to[8] = scales[at], to[9] = (uint32_t)(start * sum);
}

// unpack_rounded is the inverse of pack_rounded.
KERNEL unpack_rounded(const uint32_t *from, uint32_t *bytes, uint32_t *scales, uint32_t all, uint32_t first, uint32_t n) {
  uint32_t b = threadIdx.x + blockIdx.x * blockDim.x;
  if (b >= n) return;
  uint64_t at = (uint64_t)blockIdx.y * all + first + b;
  from += ((uint64_t)blockIdx.y * n + b) * RECORD;
  for (int i = 0; i < 8; i++) bytes[at * 8 + i] = from[i];
  scales[at] = from[8];
}
