// Products of quantized weights with the RMS norm of one token. Each thread block computes the norm and rounds it, as
// rms_norm does, while the card's memory reads its first weights. No kernel before it has to.
#define NORMED_PANELS 4 // of a thread block, at most

// Normed is the token before its norm, n columns.
struct Normed {
  const float *x, *weight;
  float eps;
};

// fetch_token begins to copy a token to row, and to read the weights of its norm.
DEVICE void fetch_token(Normed in, uint32_t n, float *row) {
  for (uint32_t i = threadIdx.x * 4; i < n; i += 512 * 4) copy16(row + i, in.x + i);
  end_copies();
  for (uint32_t i = threadIdx.x * 8; i < n; i += 512 * 8) prefetch(in.weight + i);
}

// round_norm computes the norm of the token in row and rounds it to bytes and their steps, in shared memory.
DEVICE void round_norm(Normed in, uint32_t n, float *row, int8_t *bytes, float *steps) {
  SHARED float factor;
  wait_copies<0>();
  wait_block();
  if (threadIdx.x < 32) {
    float f = rms_factor(row, n, in.eps);
    if (threadIdx.x == 0) factor = f;
  }
  wait_block();
  for (uint32_t from = threadIdx.x; from < n; from += 4 * 512) { // whole warps
    float w[4];
#pragma unroll
    for (uint32_t i = 0; i < 4; i++)
      if (from + i * 512 < n) w[i] = in.weight[from + i * 512];
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
      uint32_t c = from + i * 512;
      if (c < n) quantize(mul_(mul_(row[c], factor), w[i]), bytes + c / 32 * 32, steps + c / 32, c % 32);
    }
  }
  wait_block();
}

// product_normed multiplies `panels` panels from blockIdx.x * panels on. With `gated`, the rows of w are those of a gate
// and as many of up, and a thread block has 32 rows of each: it stores their gated activation, rounded.
template <class Q, bool gated> DEVICE void product_normed(const typename Q::Part *w, const uint16_t *scales, Normed in, uint32_t panels, After after, Units units, uint32_t activation, const float *up_bias, int8_t *bytes, float *steps) {
  SHARED float4 row[MAX_NORM / 4];
  SHARED uint4 token[MAX_NORM / 16];
  SHARED float token_steps[MAX_NORM / 32];
  SHARED float part[UNITS][NORMED_PANELS * PANEL];
  uint32_t unit = threadIdx.x / 32, lane = threadIdx.x % 32, of = lane / 2, half = lane % 2;
  uint32_t first = units.begin(unit), blocks = units.begin(unit + 1) - first, all = (after.rows + PANEL - 1) / PANEL;
  auto panel = [&](uint32_t i) { return gated ? blockIdx.x * 2 + i % 2 + i / 2 * (all / 2) : blockIdx.x * panels + i; };
  auto begin = [&](uint32_t i) { return (uint64_t)panel(i) * units.held + first; };

  // The token comes first, so it does not wait for the weights. The first blocks of these come during the norm.
  fetch_token(in, units.held * 32, (float *)row);
  typename Q::Part early[Q::together] = {};
  bool some = blocks >= Q::together;
  if (some) {
#pragma unroll
    for (uint32_t i = 0; i < Q::together; i++) early[i] = load_now(w + begin(0) * 32 + lane + i * 32);
  }
  round_norm(in, units.held * 32, (float *)row, (int8_t *)token, token_steps);
  uint32_t done = some ? Q::together : 0; // blocks of the first panel
  float sum = 0;
  if (some) sum = add_read<Q, Q::together>(sum, early, scales + begin(0) * PANEL + of, (const int8_t *)token + first * 32, token_steps + first, half);

#pragma unroll 1
  for (uint32_t i = 0; i < panels && panel(i) < all; i++, done = 0, sum = 0) {
    const typename Q::Part *from = w + (begin(i) + done) * 32 + lane;
    const uint16_t *by = scales + (begin(i) + done) * PANEL + of;
    const int8_t *x = (const int8_t *)token + (first + done) * 32;
    const float *xscales = token_steps + first + done;
    uint32_t left = blocks - done;
    auto step = [&](uint32_t n) { from += n * 32, by += n * PANEL, x += n * 32, xscales += n, left -= n; };
#pragma unroll 1
    for (; left >= Q::together; step(Q::together)) sum = add_blocks<Q, Q::together>(sum, from, by, x, xscales, half);
#pragma unroll 1
    for (; left > 0; step(1)) sum = add_blocks<Q, 1>(sum, from, by, x, xscales, half);
    if (half == 0) part[unit][i * PANEL + of] = sum;
  }
  wait_block();
  uint32_t t = threadIdx.x;
  if constexpr (!gated) {
    if (t < panels * PANEL) finish(&part[0][t], NORMED_PANELS * PANEL, units, after, 0, blockIdx.x * panels * PANEL + t);
  } else if (t < 32) {
    float gate[UNITS], up[UNITS];
#pragma unroll
    for (int u = 0; u < UNITS; u++) gate[u] = part[u][t], up[u] = part[u][32 + t];
    float g = fold_units(gate, units.count), v = fold_units(up, units.count);
    uint32_t column = blockIdx.x * 32 + t;
    if (after.bias) g = add_(g, after.bias[column]);
    if (up_bias) v = add_(v, up_bias[column]);
    quantize(gate_mul(activation, g, v), bytes + blockIdx.x * 32, steps + blockIdx.x, t);
  }
}

#define UNITS_PARAMETERS uint32_t rows, uint32_t count, uint32_t of, uint32_t blocks
#define ALL_UNITS {0, count, of, blocks, 1, 0, blocks}

// normed is the product; y and bias are those of After.
#define PRODUCT_NORMED(name, type) \
  KERNEL THREADS(512, 2) name##_product_normed(const type::Part *w, const uint16_t *scales, const float *x, const float *weight, float eps, uint32_t panels, UNITS_PARAMETERS, const float *bias, float *y) { \
    product_normed<type, false>(w, scales, {x, weight, eps}, panels, {y, 0, bias, nullptr, rows, 0}, ALL_UNITS, 0, nullptr, nullptr, nullptr); \
  } \
  KERNEL THREADS(512, 2) name##_gate_normed(const type::Part *w, const uint16_t *scales, const float *x, const float *weight, float eps, uint32_t activation, UNITS_PARAMETERS, const float *gate_bias, const float *up_bias, int8_t *bytes, float *steps) { \
    product_normed<type, true>(w, scales, {x, weight, eps}, 4, {nullptr, 0, gate_bias, nullptr, rows, 0}, ALL_UNITS, activation, up_bias, bytes, steps); \
  }
PRODUCT_NORMED(q8, Q8)
PRODUCT_NORMED(q4, Q4)
#undef PRODUCT_NORMED
