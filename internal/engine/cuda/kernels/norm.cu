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
// most MAX_NORM. A block of 512 threads computes a row, so a card computes many rows at once.
KERNEL THREADS(512, 4) rms_norm(const float *x, const float *weight, const float *residual, float eps, float *out, int8_t *bytes, float *scales, uint32_t n) {
  SHARED float4 row[MAX_NORM / 4];
  SHARED float factor;
  constexpr int ahead = 2; // quads of a thread whose weights are read at once
  uint32_t lane = threadIdx.x % 32, first = threadIdx.x / 32 * 128;
  uint64_t begin = (uint64_t)blockIdx.y * n;
  for (uint32_t i = threadIdx.x * 4; i < n; i += 512 * 4) copy16(row + i / 4, x + begin + i);
  end_copies();
  float w[ahead][4];
  auto read_weights = [&] {
#pragma unroll
    for (uint32_t i = 0; i < ahead; i++) {
      uint32_t c = first + i * 2048 + lane * 4;
      if (c < n) load_quad(w[i], weight + c, 4);
    }
  };
  read_weights();
  wait_copies<0>();
  wait_block();
  if (threadIdx.x < 32) {
    float f = rms_factor((const float *)row, n, eps);
    if (threadIdx.x == 0) factor = f;
  }
  wait_block();
#pragma unroll 1
  while (first < n) { // whole warps
#pragma unroll
    for (uint32_t i = 0; i < ahead; i++) {
      uint32_t c = first + i * 2048 + lane * 4;
      bool mine = c < n; // all of a block of 32 columns, or none
      float y[4] = {};
      if (mine) {
        float4 v = row[c / 4];
        y[0] = mul_(mul_(v.x, factor), w[i][0]), y[1] = mul_(mul_(v.y, factor), w[i][1]);
        y[2] = mul_(mul_(v.z, factor), w[i][2]), y[3] = mul_(mul_(v.w, factor), w[i][3]);
        if (residual) {
          float r[4];
          load_quad(r, residual + begin + c, 4);
#pragma unroll
          for (int j = 0; j < 4; j++) y[j] = add_(r[j], y[j]);
        }
        if (out) store_quad(out + begin + c, y, 4);
      }
      if (bytes) quantize_quad(y, bytes + begin + c, scales + (begin + c) / 32, mine);
    }
    first += ahead * 2048;
    read_weights();
  }
}

// Columns of a thread block of rms_norm_split.
#define SPLIT_COLUMNS 512

// rms_norm_split is rms_norm for few rows, whose blocks leave a card idle: a block writes SPLIT_COLUMNS columns of a
// row, and computes the whole sum. out is not x, because other blocks read the row.
KERNEL THREADS(SPLIT_COLUMNS, 2) rms_norm_split(const float *x, const float *weight, const float *residual, float eps, float *out, int8_t *bytes, float *scales, uint32_t n) {
  SHARED float4 row[MAX_NORM / 4];
  SHARED float factor;
  uint32_t mine = blockIdx.x * SPLIT_COLUMNS + threadIdx.x;
  uint64_t at = (uint64_t)blockIdx.y * n + mine;
  float w = mine < n ? weight[mine] : 0;
  x += (uint64_t)blockIdx.y * n;
  for (uint32_t i = threadIdx.x; i < n / 4; i += SPLIT_COLUMNS) row[i] = ((const float4 *)x)[i];
  wait_block();
  if (threadIdx.x < 32) {
    float f = rms_factor((const float *)row, n, eps);
    if (threadIdx.x == 0) factor = f;
  }
  wait_block();
  if (mine >= n) return; // whole warps
  float y = mul_(mul_(((const float *)row)[mine], factor), w);
  if (residual) y = add_(residual[at], y);
  if (out) out[at] = y;
  if (bytes) quantize(y, bytes + at / 32 * 32, scales + at / 32, threadIdx.x % 32);
}
