// Columns that norms hold in shared memory.
#define MAX_NORM 8192

// rms_norm_quantize is the RMS norm of one token x (n), rounded for a product. n is a multiple of
// 512, at most MAX_NORM. A block of 512 threads writes 512 columns of the result; every block
// computes the whole sum, in 16 chains and a tree as tensor.SumSquares.
KERNEL THREADS(512, 2) rms_norm_quantize(const float *x, const float *weight, float eps, int8_t *bytes, float *scales, uint32_t n) {
  SHARED float row[MAX_NORM];
  SHARED float factor;
  uint32_t mine = blockIdx.x * 512 + threadIdx.x;
  float w = weight[mine];
  for (uint32_t i = threadIdx.x; i < n / 4; i += 512) ((float4 *)row)[i] = ((const float4 *)x)[i];
  wait_block();
  if (threadIdx.x < 32) {
    uint32_t chain = threadIdx.x % 16;
    float sum = 0;
#pragma unroll 32
    for (uint32_t i = chain; i < n; i += 16) sum = fma_(row[i], row[i], sum);
    for (int m = 8; m; m >>= 1) sum = add_(sum, from_lane_xor(sum, m));
    if (threadIdx.x == 0) factor = div_(1.f, sqrt_(add_(div_(sum, from_int(n)), eps)));
  }
  wait_block();
  quantize(mul_(mul_(row[mine], factor), w), bytes + mine / 32 * 32, scales + mine / 32, threadIdx.x % 32);
}
