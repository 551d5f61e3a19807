// Products of quantized weights with one token. Rows of weights are in panels of 16; units are the
// parts of the contraction axis that are summed in a tree (docs/decisions/canonical-arithmetic.md).
// Layouts are those of launch.Pack.
#define UNITS 16
#define PANEL 16

DEVICE uint32_t units_of(uint32_t blocks) { return blocks < UNITS ? blocks : UNITS; }

// fold_units sums the values of units in the canonical tree: neighbours, then neighbours of the sums.
DEVICE float fold_units(float *t, uint32_t units) {
#pragma unroll
  for (int s = 1; s < UNITS; s *= 2) {
#pragma unroll
    for (int u = 0; u + s < UNITS; u += 2 * s)
      if (uint32_t(u + s) < units) t[u] = add_(t[u], t[u + s]);
  }
  return t[0];
}

// After is what follows the sum of weight row r for token t: bias and residual may be null.
struct After {
  float *y;
  uint32_t ld;
  const float *bias, *residual;
  uint32_t rows;

  DEVICE_METHOD void store(uint32_t t, uint32_t r, float sum) const {
    if (r >= rows) return;
    uint64_t at = (uint64_t)t * ld + r;
    if (bias) sum = add_(sum, bias[r]);
    y[at] = residual ? add_(residual[at], sum) : sum;
  }
};

// Q8 and Q4 read a block of a row, half of it in each of two lanes. start is the integer sum of the
// half with the token's bytes x (block, 32).
struct Q8 {
  typedef uint4 Part;
  DEVICE_METHOD static int dot(uint4 a, const int8_t *x, uint32_t half) {
    uint4 t = ((const uint4 *)x)[half];
    return dot4(a.x, t.x, dot4(a.y, t.y, dot4(a.z, t.z, dot4(a.w, t.w, 0))));
  }
};
struct Q4 {
  typedef uint2 Part;
  DEVICE_METHOD static int dot(uint2 a, const int8_t *x, uint32_t half) {
    uint2 low = ((const uint2 *)x)[half], high = ((const uint2 *)x)[half + 2];
    const uint32_t mask = 0x0f0f0f0f, ones = 0x01010101;
    int sum = dot4(low.x, ones, dot4(low.y, ones, dot4(high.x, ones, dot4(high.y, ones, 0))));
    return dot4(a.x & mask, low.x, dot4(a.y & mask, low.y, dot4(a.x >> 4 & mask, high.x, dot4(a.y >> 4 & mask, high.y, -8 * sum))));
  }
};

// product of one token: bytes x (block, 32), their scales (block). A thread block of 512 is a
// panel, a warp is a unit, and two lanes share a row.
template <class Q> DEVICE void product(const typename Q::Part *w, const uint16_t *scales, const int8_t *x, const float *xscales, After after, uint32_t blocks) {
  SHARED float part[UNITS][PANEL];
  uint32_t unit = threadIdx.x / 32, lane = threadIdx.x % 32, row = lane / 2, half = lane % 2, units = units_of(blocks);
  uint32_t first = unit < units ? unit * blocks / units : 0, end = unit < units ? (unit + 1) * blocks / units : 0;
  w += (uint64_t)blockIdx.x * blocks * 32 + lane;
  scales += (uint64_t)blockIdx.x * blocks * PANEL + row;
  float sum = 0;
#pragma unroll 4
  for (uint32_t b = first; b < end; b++) {
    int dot = Q::dot(load_once(w + (uint64_t)b * 32), x + b * 32, half);
    dot += from_lane_xor(dot, 1);
    sum = fma_(from_int(dot), mul_(from_half(scales[b * PANEL]), xscales[b]), sum);
  }
  if (half == 0) part[unit][row] = sum;
  wait_block();
  if (threadIdx.x < PANEL) {
    float t[UNITS];
#pragma unroll
    for (int u = 0; u < UNITS; u++) t[u] = part[u][threadIdx.x];
    after.store(0, blockIdx.x * PANEL + threadIdx.x, fold_units(t, units));
  }
}

KERNEL THREADS(512, 2) q8_product(const uint4 *w, const uint16_t *scales, const int8_t *x, const float *xscales, float *y, uint32_t ld, const float *bias, const float *residual, uint32_t rows, uint32_t blocks, uint32_t n) {
  product<Q8>(w, scales, x, xscales, {y, ld, bias, residual, rows}, blocks);
}

KERNEL THREADS(512, 2) q4_product(const uint2 *w, const uint16_t *scales, const int8_t *x, const float *xscales, float *y, uint32_t ld, const float *bias, const float *residual, uint32_t rows, uint32_t blocks, uint32_t n) {
  product<Q4>(w, scales, x, xscales, {y, ld, bias, residual, rows}, blocks);
}
