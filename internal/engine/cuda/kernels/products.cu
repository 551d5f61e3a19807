// Products of weights with one token. Their rows are in panels of 16; units are the parts of the
// contraction axis that are summed in a tree (docs/decisions/canonical-arithmetic.md).
#define UNITS 16
#define PANEL 16

// fold sums n values in the canonical tree: neighbours, then neighbours of the sums.
template <int n> DEVICE float fold(const float *t) {
  if constexpr (n == 1) return *t;
  else return add_(fold<n / 2>(t), fold<n / 2>(t + n / 2));
}

// q8_product is y (rows) = W x, or residual + W x where residual is not null, for weights of
// Q8_0: bytes (panel, block, row, 32), scales (panel, block, row). The token is in blocks of 32:
// x (block, 32), its scales (block). There are at least 16 blocks of 32 columns. A thread block is
// a panel, a warp is a unit, and two lanes share a row.
KERNEL THREADS(512, 2) q8_product(const uint4 *w, const uint16_t *scales, const uint4 *x, const float *xscales, float *y, const float *residual, uint32_t blocks) {
  SHARED float part[UNITS][PANEL];
  uint32_t unit = threadIdx.x / 32, lane = threadIdx.x % 32, row = lane / 2, half = lane % 2;
  uint32_t first = unit * blocks / UNITS, end = (unit + 1) * blocks / UNITS;
  w += (uint64_t)blockIdx.x * blocks * 32 + lane;
  scales += (uint64_t)blockIdx.x * blocks * PANEL + row;
  x += half;
  float sum = 0;
#pragma unroll 4
  for (uint32_t b = first; b < end; b++) {
    uint4 a = load_once(w + (uint64_t)b * 32), t = x[b * 2];
    int dot = dot4(a.x, t.x, dot4(a.y, t.y, dot4(a.z, t.z, dot4(a.w, t.w, 0))));
    dot += from_lane_xor(dot, 1);
    sum = fma_(from_int(dot), mul_(from_half(scales[b * PANEL]), xscales[b]), sum);
  }
  if (half == 0) part[unit][row] = sum;
  wait_block();
  if (threadIdx.x < PANEL) {
    float t[UNITS];
#pragma unroll
    for (int u = 0; u < UNITS; u++) t[u] = part[u][threadIdx.x];
    sum = fold<UNITS>(t);
    uint32_t r = blockIdx.x * PANEL + threadIdx.x;
    y[r] = residual ? add_(residual[r], sum) : sum;
  }
}
