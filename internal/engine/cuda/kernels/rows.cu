// Products of quantized weights with several tokens, by integer tensor cores. A thread block of 512
// is a panel and 8*tiles tokens, and a warp is a unit.

// swizzled is the place of half a row of 32 bytes, so that 8 rows of one half lie in all banks of shared memory.
DEVICE uint32_t swizzled(uint32_t row, uint32_t half) { return row * 32 + (half ^ (row >> 2 & 1)) * 16; }

// Rows8 and Rows4 give a lane its part of a panel's block and of a token's block for multiply8. Lane
// 4*g+t has the rows g and g+8.
struct Rows8 {
  typedef uint2 Word;
  static constexpr uint32_t panel_bytes = 512; // of a block
  // place is where piece i of 16 bytes of a panel lies in shared memory, and staged reads an operand from staged_at on.
  DEVICE_METHOD static uint32_t place(uint32_t panel, uint32_t i) { return panel + swizzled(i / 2, i % 2); }
  DEVICE_METHOD static uint32_t staged_at(uint32_t lane) { return swizzled(lane % 16, lane / 16); }
  DEVICE_METHOD static void staged(uint32_t *a, shared_address w) { load_matrices(a, w); }
  DEVICE_METHOD static void weights(uint32_t *a, const uint2 *w, uint32_t g, uint32_t t) {
    uint2 low = load_once(w + g * 4 + t), high = load_once(w + (g + 8) * 4 + t);
    a[0] = low.x, a[1] = high.x, a[2] = low.y, a[3] = high.y;
  }
  DEVICE_METHOD static void token(uint32_t *b, const int8_t *x, uint32_t t) {
    uint2 v = ((const uint2 *)x)[t];
    b[0] = v.x, b[1] = v.y;
  }
};
struct Rows4 {
  typedef uint32_t Word;
  static constexpr uint32_t panel_bytes = 256;
  // Nibbles minus 8, as bytes.
  DEVICE_METHOD static uint32_t bytes(uint32_t v) { return (((v & 0x0f0f0f0f) | 0x80808080) - 0x08080808) ^ 0x80808080; }
  DEVICE_METHOD static void weights(uint32_t *a, const uint32_t *w, uint32_t g, uint32_t t) { unpack(a, w[g * 4 + t], w[g * 4 + t + 32]); }
  DEVICE_METHOD static uint32_t place(uint32_t panel, uint32_t i) { return panel + i * 16; }
  DEVICE_METHOD static uint32_t staged_at(uint32_t lane) { return lane * 4; }
  DEVICE_METHOD static void staged(uint32_t *a, shared_address w) {
    uint32_t low, high;
    load_shared(low, w), load_shared(high, w + 128);
    unpack(a, low, high);
  }
  DEVICE_METHOD static void unpack(uint32_t *a, uint32_t low, uint32_t high) {
    a[0] = bytes(low), a[1] = bytes(high), a[2] = bytes(low >> 4), a[3] = bytes(high >> 4);
  }
  DEVICE_METHOD static void token(uint32_t *b, const int8_t *x, uint32_t t) {
    b[0] = ((const uint32_t *)x)[t], b[1] = ((const uint32_t *)x)[t + 4];
  }
};

// Words of a panel's block.
#define BLOCK_WORDS 64

// Tokens are where a lane finds its tokens: the first block of that of its bytes, and of those of its
// sums, for each tile.
template <int tiles> struct Tokens {
  const int8_t *x;
  const float *scales;
  uint32_t mine[tiles], left[tiles], right[tiles];
};

// add_tiles adds `deep` successive blocks, from block `at` of the tokens on. All loads come before the
// first use.
template <class R, int tiles, uint32_t deep> DEVICE void add_tiles(float (*sum)[4], const typename R::Word *w, const uint16_t *scales, const Tokens<tiles> &tokens, uint32_t at, uint32_t g, uint32_t t) {
  uint32_t weights[deep][4], bytes[deep][tiles][2];
  uint16_t low[deep], high[deep];
  float l[deep][tiles], r[deep][tiles];
#pragma unroll
  for (uint32_t k = 0; k < deep; k++) {
    R::weights(weights[k], w + k * BLOCK_WORDS, g, t);
    low[k] = scales[k * PANEL], high[k] = scales[k * PANEL + 8];
#pragma unroll
    for (int i = 0; i < tiles; i++) {
      R::token(bytes[k][i], tokens.x + (uint64_t)(tokens.mine[i] + at + k) * 32, t);
      l[k][i] = tokens.scales[tokens.left[i] + at + k], r[k][i] = tokens.scales[tokens.right[i] + at + k];
    }
  }
#pragma unroll
  for (uint32_t k = 0; k < deep; k++) {
    float from_low = from_half(low[k]), from_high = from_half(high[k]);
#pragma unroll
    for (int i = 0; i < tiles; i++) {
      int dot[4] = {};
      multiply8(dot, weights[k], bytes[k][i]);
      sum[i][0] = fma_(from_int(dot[0]), mul_(from_low, l[k][i]), sum[i][0]);
      sum[i][1] = fma_(from_int(dot[1]), mul_(from_low, r[k][i]), sum[i][1]);
      sum[i][2] = fma_(from_int(dot[2]), mul_(from_high, l[k][i]), sum[i][2]);
      sum[i][3] = fma_(from_int(dot[3]), mul_(from_high, r[k][i]), sum[i][3]);
    }
  }
}

// product_rows reads `deep` blocks at once.
template <class R, int tiles, uint32_t deep> DEVICE void product_rows(const typename R::Word *w, const uint16_t *scales, const int8_t *x, const float *xscales, After after, Units units, uint32_t n) {
  constexpr int together = tiles < 4 ? tiles : 4; // tiles whose units are folded at once
  SHARED float part[UNITS][together * 128];
  uint32_t unit = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  uint32_t first = units.begin(unit), end = units.begin(unit + 1), token = blockIdx.y * tiles * 8;
  w += ((uint64_t)blockIdx.x * units.held + first) * BLOCK_WORDS;
  scales += ((uint64_t)blockIdx.x * units.held + first) * PANEL + g;
  float sum[tiles][4] = {};
  Tokens<tiles> tokens = {x, xscales};
#pragma unroll
  for (int i = 0; i < tiles; i++) { // tokens after the last are read as the last one, and not stored
    uint32_t last = n - 1, at = token + i * 8;
    tokens.mine[i] = (at + g < last ? at + g : last) * units.held;
    tokens.left[i] = (at + 2 * t < last ? at + 2 * t : last) * units.held;
    tokens.right[i] = (at + 2 * t + 1 < last ? at + 2 * t + 1 : last) * units.held;
  }
#pragma unroll 1
  for (; first + deep <= end; first += deep, w += deep * BLOCK_WORDS, scales += deep * PANEL) add_tiles<R, tiles, deep>(sum, w, scales, tokens, first, g, t);
  if constexpr (deep > 1) {
#pragma unroll 1
    for (; first < end; first++, w += BLOCK_WORDS, scales += PANEL) add_tiles<R, tiles, 1>(sum, w, scales, tokens, first, g, t);
  }
#pragma unroll
  for (int i = 0; i < tiles; i += together) {
    if (i > 0) wait_block();
#pragma unroll
    for (int j = 0; j < together; j++)
#pragma unroll
      for (int k = 0; k < 4; k++) part[unit][(j * 4 + k) * 32 + lane] = sum[i + j][k];
    wait_block();
    uint32_t at = threadIdx.x; // one sum a thread
    if (at < together * 128) {
      uint32_t of = at % 32, k = at / 32 % 4, to = token + (i + at / 128) * 8 + of % 4 * 2 + k % 2;
      if (to < n) finish(&part[0][at], together * 128, units, after, to, blockIdx.x * PANEL + of / 4 + k / 2 * 8);
    }
  }
}

#define PRODUCT_ROWS(name, rows_of, tiles, deep, blocks_together) \
  KERNEL THREADS(512, blocks_together) name(const rows_of::Word *w, const uint16_t *scales, const int8_t *x, const float *xscales, PRODUCT_PARAMETERS) { \
    product_rows<rows_of, tiles, deep>(w, scales, x, xscales, PRODUCT_ARGUMENTS, n); \
  }
PRODUCT_ROWS(q8_product_8, Rows8, 1, 4, 2)
PRODUCT_ROWS(q8_product_16, Rows8, 2, 4, 1)
PRODUCT_ROWS(q8_product_32, Rows8, 4, 2, 1)
PRODUCT_ROWS(q8_product_64, Rows8, 8, 1, 1)
PRODUCT_ROWS(q4_product_8, Rows4, 1, 4, 2)
PRODUCT_ROWS(q4_product_16, Rows4, 2, 4, 1)
PRODUCT_ROWS(q4_product_32, Rows4, 4, 2, 1)
PRODUCT_ROWS(q4_product_64, Rows4, 8, 1, 1)
#undef PRODUCT_ROWS
