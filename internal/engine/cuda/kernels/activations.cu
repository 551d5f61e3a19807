// quantize_rows rounds n blocks of 32 numbers: bytes (n, 32), scales (n). A warp rounds a block.
KERNEL quantize_rows(const float *x, int8_t *bytes, float *scales, uint32_t n) {
  uint32_t block = (threadIdx.x + blockIdx.x * blockDim.x) / 32, lane = threadIdx.x % 32;
  if (block < n) quantize(x[block * 32 + lane], bytes + block * 32, scales + block, lane);
}

// exp_all is exp_ of n numbers.
KERNEL exp_all(const float *x, float *y, uint32_t n) {
  uint32_t i = threadIdx.x + blockIdx.x * blockDim.x;
  if (i < n) y[i] = exp_(x[i]);
}

// silu_mul_quantize is silu_mul of a token's gate (n) and up (n), rounded for the down projection.
// n is a multiple of 32.
KERNEL silu_mul_quantize(const float *gate, const float *up, int8_t *bytes, float *scales, uint32_t n) {
  uint32_t i = threadIdx.x + blockIdx.x * blockDim.x;
  if (i < n) quantize(silu_mul(gate[i], up[i]), bytes + i / 32 * 32, scales + i / 32, i % 32);
}
