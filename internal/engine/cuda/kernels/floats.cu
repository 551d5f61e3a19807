// Products of float weights: one chain of fma for each row, token and unit. A thread block of 256 is
// a panel and some tokens; a thread is a row and a unit. Weights are in chunks of 16 bytes a row.

// Float32, Bfloat16 and Float16 widen a chunk.
struct Float32 {
  static constexpr int columns = 4;
  DEVICE_METHOD static void widen(float *to, uint4 v) { to[0] = as_float(v.x), to[1] = as_float(v.y), to[2] = as_float(v.z), to[3] = as_float(v.w); }
};
struct Bfloat16 {
  static constexpr int columns = 8;
  DEVICE_METHOD static void pair(float *to, uint32_t v) { to[0] = as_float(v << 16), to[1] = as_float(v & 0xffff0000); }
  DEVICE_METHOD static void widen(float *to, uint4 v) { pair(to, v.x), pair(to + 2, v.y), pair(to + 4, v.z), pair(to + 6, v.w); }
};
struct Float16 {
  static constexpr int columns = 8;
  DEVICE_METHOD static void pair(float *to, uint32_t v) { to[0] = from_half(v & 0xffff), to[1] = from_half(v >> 16); }
  DEVICE_METHOD static void widen(float *to, uint4 v) { pair(to, v.x), pair(to + 2, v.y), pair(to + 4, v.z), pair(to + 6, v.w); }
};

template <class T, int tokens> DEVICE void float_product(const uint4 *w, const float *x, After after, Units units, uint32_t n) {
  SHARED float part[UNITS][PANEL][tokens];
  constexpr int chunks = 32 / T::columns; // of a block
  uint32_t unit = threadIdx.x / PANEL, row = threadIdx.x % PANEL, blocks = units.held, token = blockIdx.y * tokens;
  uint32_t first = units.begin(unit), end = units.begin(unit + 1);
  w += ((uint64_t)blockIdx.x * blocks + first) * (chunks * PANEL) + row;
  const float4 *at[tokens]; // in the blocks of each token
#pragma unroll
  for (int i = 0; i < tokens; i++) at[i] = (const float4 *)(x + ((uint64_t)(token + i < n ? token + i : n - 1) * blocks + first) * 32);
  float sum[tokens] = {};
#pragma unroll 1
  for (uint32_t b = first; b < end; b++, w += chunks * PANEL) {
    uint4 part[chunks]; // all loads of weights come before the first use
#pragma unroll
    for (int c = 0; c < chunks; c++) part[c] = load_once(w + c * PANEL);
#pragma unroll
    for (int c = 0; c < chunks; c++) {
      float v[T::columns];
      T::widen(v, part[c]);
#pragma unroll
      for (int i = 0; i < tokens; i++) {
#pragma unroll
        for (int k = 0; k < T::columns / 4; k++) {
          float4 t = at[i][c * (T::columns / 4) + k];
          sum[i] = fma_(v[4 * k], t.x, sum[i]);
          sum[i] = fma_(v[4 * k + 1], t.y, sum[i]);
          sum[i] = fma_(v[4 * k + 2], t.z, sum[i]);
          sum[i] = fma_(v[4 * k + 3], t.w, sum[i]);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < tokens; i++) at[i] += 8;
  }
#pragma unroll
  for (int i = 0; i < tokens; i++) part[unit][row][i] = sum[i];
  wait_block();
  if (threadIdx.x < PANEL * tokens) {
    uint32_t r = threadIdx.x % PANEL, i = threadIdx.x / PANEL;
    if (token + i < n) finish(&part[0][r][i], PANEL * tokens, units, after, token + i, blockIdx.x * PANEL + r);
  }
}

#define FLOAT_PRODUCT(name, type, tokens) \
  KERNEL THREADS(256, 2) name(const uint4 *w, const float *x, PRODUCT_PARAMETERS) { \
    float_product<type, tokens>(w, x, PRODUCT_ARGUMENTS, n); \
  }
FLOAT_PRODUCT(f32_product, Float32, 1)
FLOAT_PRODUCT(f32_product_8, Float32, 8)
FLOAT_PRODUCT(bf16_product, Bfloat16, 1)
FLOAT_PRODUCT(bf16_product_8, Bfloat16, 8)
FLOAT_PRODUCT(f16_product, Float16, 1)
FLOAT_PRODUCT(f16_product_8, Float16, 8)
#undef FLOAT_PRODUCT
