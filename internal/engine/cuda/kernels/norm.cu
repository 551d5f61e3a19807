// Columns that norms hold in shared memory.
#define MAX_NORM 8192

// sum_squares adds the squares of n numbers, 16 apart.
template <int n> DEVICE float sum_squares(const float *x, float sum) {
#pragma unroll
  for (int i = 0; i < n; i++) sum = fma_(x[16 * i], x[16 * i], sum);
  return sum;
}

// rms_factor is tensor.RMSFactor of n numbers in shared memory, for all lanes of a warp: 16 chains
// and their tree.
DEVICE float rms_factor(const float *x, uint32_t n, float eps) {
  float sum = 0;
  uint32_t done = 0;
  x += threadIdx.x % 16;
  for (; n - done >= 512; done += 512) sum = sum_squares<32>(x + done, sum);
  for (; n - done >= 32; done += 32) sum = sum_squares<2>(x + done, sum);
  if (n - done > threadIdx.x % 16) sum = sum_squares<1>(x + done, sum);
  if (n - done > 16 + threadIdx.x % 16) sum = sum_squares<1>(x + done + 16, sum);
  for (int m = 8; m; m >>= 1) sum = add_(sum, from_lane_xor(sum, m));
  return div_(1.f, sqrt_(add_(div_(sum, from_int(n)), eps)));
}

// rms_norm is tensor.RMSNorm of rows x (rows, n) by weight (n), plus residual (rows, n) where there is
// one. The result goes to out, or rounded to bytes and scales, or to both. n is a multiple of 32, at
// most MAX_NORM. A block of 512 threads writes 512 columns of a row, and computes the whole sum.
KERNEL THREADS(512, 2) rms_norm(const float *x, const float *weight, const float *residual, float eps, float *out, int8_t *bytes, float *scales, uint32_t n) {
  SHARED float row[MAX_NORM];
  SHARED float factor;
  uint32_t mine = blockIdx.x * 512 + threadIdx.x;
  uint64_t at = (uint64_t)blockIdx.y * n + mine;
  float w = mine < n ? weight[mine] : 0;
  x += (uint64_t)blockIdx.y * n;
  for (uint32_t i = threadIdx.x; i < n / 4; i += 512) ((float4 *)row)[i] = ((const float4 *)x)[i];
  wait_block();
  if (threadIdx.x < 32) {
    float f = rms_factor(row, n, eps);
    if (threadIdx.x == 0) factor = f;
  }
  wait_block();
  if (mine >= n) return; // whole warps
  float y = mul_(mul_(row[mine], factor), w);
  if (residual) y = add_(residual[at], y);
  if (out) out[at] = y;
  if (bytes) quantize(y, bytes + at / 32 * 32, scales + at / 32, threadIdx.x % 32);
}
