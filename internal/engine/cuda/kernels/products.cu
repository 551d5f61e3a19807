// Products of quantized weights with one token. Rows of weights are in panels of 16; units are the
// parts of the contraction axis that are summed in a tree (docs/decisions/canonical-arithmetic.md).
// Layouts are those of launch.Pack.
#define UNITS 16
#define PANEL 16

// Units are those of the contraction axis that a weight holds: count units from first on, of `of`
// units that share `blocks` blocks. The weight holds `held` blocks, from `base` on. Bit i of starts is
// set if a node of the tree begins at unit first+i (tensor.Subtrees).
struct Units {
  uint32_t first, count, of, blocks, starts, base, held;

  // begin is the first block of unit u within the weight, for u up to count, and later its end.
  DEVICE_METHOD uint32_t begin(uint32_t u) const {
    uint32_t at = (first + (u < count ? u : count)) * blocks;
    return (of == UNITS ? at / UNITS : at / of) - base;
  }
};

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

// After is what follows the sum of weight row r for token t: bias and residual may be null. Nodes of a
// tree are `node` numbers apart.
struct After {
  float *y;
  uint32_t ld;
  const float *bias, *residual;
  uint32_t rows;
  uint64_t node;

  DEVICE_METHOD void store(uint32_t t, uint32_t r, float sum) const {
    if (r >= rows) return;
    uint64_t at = (uint64_t)t * ld + r;
    if (bias) sum = add_(sum, bias[r]);
    y[at] = residual ? add_(residual[at], sum) : sum;
  }
  // store<count> stores several sums, those of tokens below n. All loads come before the first store, which the compiler
  // cannot do itself, because residual may be y.
  template <int count> DEVICE_METHOD void store(const uint32_t *t, uint32_t n, const uint32_t *r, const float *sums) const {
    float before[count], biases[count];
#pragma unroll
    for (int i = 0; i < count; i++) {
      bool real = t[i] < n && r[i] < rows;
      before[i] = real && residual ? residual[(uint64_t)t[i] * ld + r[i]] : 0;
      biases[i] = real && bias ? bias[r[i]] : 0;
    }
#pragma unroll
    for (int i = 0; i < count; i++) {
      float sum = bias ? add_(sums[i], biases[i]) : sums[i];
      if (t[i] < n && r[i] < rows) y[(uint64_t)t[i] * ld + r[i]] = residual ? add_(before[i], sum) : sum;
    }
  }
};

// finish folds the sums of the units, part[unit*stride], and stores the result, or that of every
// node. It overwrites part.
DEVICE void finish(float *part, uint32_t stride, Units units, After after, uint32_t t, uint32_t r) {
  if (units.starts == 1) {
    float v[UNITS];
#pragma unroll
    for (int u = 0; u < UNITS; u++) v[u] = part[u * stride];
    after.store(t, r, fold_units(v, units.count));
    return;
  }
  for (uint32_t u = 0; u < units.count; after.y += after.node) {
    uint32_t end = u + 1;
    while (end < units.count && !(units.starts >> end & 1)) end++;
    for (uint32_t s = 1; s < end - u; s *= 2)
      for (uint32_t a = u; a + s < end; a += 2 * s) part[a * stride] = add_(part[a * stride], part[(a + s) * stride]);
    after.store(t, r, part[u * stride]);
    u = end;
  }
}

// Q8 and Q4 have half of a block of a row, which two lanes share. dot is the integer sum of the half
// with that of the token's bytes x.
struct Q8 {
  typedef uint4 Part;
  struct Token {
    uint4 v;
  };
  static constexpr uint32_t together = 4; // blocks that a lane reads at once
  DEVICE_METHOD static Token token(const int8_t *x, uint32_t half) { return {((const uint4 *)x)[half]}; }
  DEVICE_METHOD static int dot(uint4 a, Token x) { return dot4(a.x, x.v.x, dot4(a.y, x.v.y, dot4(a.z, x.v.z, dot4(a.w, x.v.w, 0)))); }
};
struct Q4 {
  typedef uint2 Part;
  struct Token {
    uint2 low, high;
  };
  static constexpr uint32_t together = 8;
  DEVICE_METHOD static Token token(const int8_t *x, uint32_t half) { return {((const uint2 *)x)[half], ((const uint2 *)x)[half + 2]}; }
  DEVICE_METHOD static int dot(uint2 a, Token x) {
    const uint32_t mask = 0x0f0f0f0f, ones = 0x01010101;
    int sum = dot4(x.low.x, ones, dot4(x.low.y, ones, dot4(x.high.x, ones, dot4(x.high.y, ones, 0))));
    return dot4(a.x & mask, x.low.x, dot4(a.y & mask, x.low.y, dot4(a.x >> 4 & mask, x.high.x, dot4(a.y >> 4 & mask, x.high.y, -8 * sum))));
  }
};

// add_read adds n successive blocks, whose weights are read, to the sum of a row. All loads come before the first use.
template <class Q, uint32_t n> DEVICE float add_read(float sum, const typename Q::Part *part, const uint16_t *scales, const int8_t *x, const float *xscales, uint32_t half) {
  typename Q::Token token[n];
  uint16_t scale[n];
  float step[n];
  int dot[n];
#pragma unroll
  for (uint32_t i = 0; i < n; i++) token[i] = Q::token(x + i * 32, half), scale[i] = scales[i * PANEL], step[i] = xscales[i];
#pragma unroll
  for (uint32_t i = 0; i < n; i++) dot[i] = Q::dot(part[i], token[i]);
#pragma unroll
  for (uint32_t i = 0; i < n; i++) sum = fma_(from_int(dot[i] + from_lane_xor(dot[i], 1)), mul_(from_half(scale[i]), step[i]), sum);
  return sum;
}

// add_blocks reads n successive blocks and adds them.
template <class Q, uint32_t n> DEVICE float add_blocks(float sum, const typename Q::Part *w, const uint16_t *scales, const int8_t *x, const float *xscales, uint32_t half) {
  typename Q::Part part[n];
#pragma unroll
  for (uint32_t i = 0; i < n; i++) part[i] = load_once(w + i * 32);
  return add_read<Q, n>(sum, part, scales, x, xscales, half);
}

// product of one token: bytes x (block, 32), their scales (block). A thread block of 512 is a
// panel, a warp is a unit, and two lanes share a row.
template <class Q> DEVICE void product(const typename Q::Part *w, const uint16_t *scales, const int8_t *x, const float *xscales, After after, Units units) {
  SHARED float part[UNITS][PANEL];
  uint32_t unit = threadIdx.x / 32, lane = threadIdx.x % 32, row = lane / 2, half = lane % 2;
  uint32_t first = units.begin(unit), left = units.begin(unit + 1) - first;
  w += ((uint64_t)blockIdx.x * units.held + first) * 32 + lane;
  scales += ((uint64_t)blockIdx.x * units.held + first) * PANEL + row;
  x += first * 32, xscales += first;
  float sum = 0;
#pragma unroll 1
  for (; left >= Q::together; left -= Q::together) {
    sum = add_blocks<Q, Q::together>(sum, w, scales, x, xscales, half);
    w += Q::together * 32, scales += Q::together * PANEL, x += Q::together * 32, xscales += Q::together;
  }
#pragma unroll 1
  for (; left > 0; left--) {
    sum = add_blocks<Q, 1>(sum, w, scales, x, xscales, half);
    w += 32, scales += PANEL, x += 32, xscales++;
  }
  if (half == 0) part[unit][row] = sum;
  wait_block();
  if (threadIdx.x < PANEL) finish(&part[0][threadIdx.x], PANEL, units, after, 0, blockIdx.x * PANEL + threadIdx.x);
}

// The last parameters of every product: the result (After), the units, and the number of tokens.
#define PRODUCT_PARAMETERS float *y, uint32_t ld, const float *bias, const float *residual, uint32_t rows, uint64_t node, uint32_t unit, uint32_t count, uint32_t of, uint32_t blocks, uint32_t starts, uint32_t base, uint32_t held, uint32_t n
#define PRODUCT_ARGUMENTS {y, ld, bias, residual, rows, node}, {unit, count, of, blocks, starts, base, held}

KERNEL THREADS(512, 2) q8_product(const uint4 *w, const uint16_t *scales, const int8_t *x, const float *xscales, PRODUCT_PARAMETERS) {
  product<Q8>(w, scales, x, xscales, PRODUCT_ARGUMENTS);
}

KERNEL THREADS(512, 2) q4_product(const uint2 *w, const uint16_t *scales, const int8_t *x, const float *xscales, PRODUCT_PARAMETERS) {
  product<Q4>(w, scales, x, xscales, PRODUCT_ARGUMENTS);
}
