// Products of quantized weights with many tokens. A thread block of 256 is 8 panels and 64 tokens, which
// pass through shared memory; a warp is 2 panels and 32 tokens, and does the units one by one.
#define TILE_PANELS 8
#define TILE_TOKENS 64
#define TILE_BLOCKS 2 // of a stage
#define TILE_STAGES 3

// Tree sums units in the canonical order, 32 sums of a thread at a time: a stack of finished nodes,
// like a binary counter.
struct Tree {
  float nodes[4][32];
  uint32_t level, units; // nodes on the stack; units in them

  // merge adds the newest node to sum.
  DEVICE_METHOD void merge(float *sum) {
    level--;
#pragma unroll
    for (int i = 0; i < 32; i++) sum[i] = add_(nodes[level][i], sum[i]);
  }
  // push adds a unit that is not the last of its tree, and clears sum.
  DEVICE_METHOD void push(float *sum) {
#pragma unroll 1
    for (uint32_t u = units; u & 1; u >>= 1) merge(sum);
#pragma unroll
    for (int i = 0; i < 32; i++) nodes[level][i] = sum[i], sum[i] = 0;
    level++, units++;
  }
  // end adds the last unit: nodes[0] is then the sum of all. It clears sum.
  DEVICE_METHOD void end(float *sum) {
#pragma unroll 1
    while (level > 0) merge(sum);
#pragma unroll
    for (int i = 0; i < 32; i++) nodes[0][i] = sum[i], sum[i] = 0;
    units = 0;
  }
};

template <class R> DEVICE void product_tiled(const uint8_t *w, const uint16_t *scales, const int8_t *x, const float *xscales, After after, Units units, uint32_t n) {
  SHARED uint4 weights[TILE_STAGES][TILE_BLOCKS][TILE_PANELS][R::panel_bytes / 16];
  SHARED uint4 factors[TILE_STAGES][TILE_BLOCKS][TILE_PANELS][2]; // scales of weights
  SHARED uint4 tokens[TILE_STAGES][TILE_BLOCKS][TILE_TOKENS][2];
  SHARED float steps[TILE_STAGES][TILE_BLOCKS][TILE_TOKENS]; // scales of tokens
  uint32_t tid = threadIdx.x, lane = tid % 32, g = lane / 4, t = lane % 4, warp = tid / 32;
  uint32_t pair = warp % 4 * 2, half = warp / 4 * 32, blocks = units.held, panels = (after.rows + PANEL - 1) / PANEL;
  uint32_t first_panel = blockIdx.x * TILE_PANELS, first_token = blockIdx.y * TILE_TOKENS;

  // What this thread copies of each stage: pieces of weights, a piece of a token, and a piece of the
  // scales of weights or a scale of a token. Panels and tokens after the last are read as the last.
  constexpr uint32_t pieces = R::panel_bytes / 16, copies = TILE_BLOCKS * TILE_PANELS * pieces / 256;
  const uint8_t *from_weights[copies], *from_token, *from_scales;
#pragma unroll
  for (uint32_t i = 0; i < copies; i++) {
    uint32_t of = tid + 256 * i, panel = first_panel + of / pieces % TILE_PANELS;
    from_weights[i] = w + ((uint64_t)(panel < panels ? panel : panels - 1) * blocks + of / pieces / TILE_PANELS) * R::panel_bytes + of % pieces * 16;
  }
  uint32_t token_block = tid / (2 * TILE_TOKENS), token = first_token + tid / 2 % TILE_TOKENS;
  from_token = (const uint8_t *)x + ((uint64_t)(token < n ? token : n - 1) * blocks + token_block) * 32 + tid % 2 * 16;
  bool of_weights = tid < TILE_BLOCKS * TILE_PANELS * 2, of_token = tid >= 256 - TILE_BLOCKS * TILE_TOKENS;
  uint32_t scale_block, step = (tid - (256 - TILE_BLOCKS * TILE_TOKENS)) / TILE_BLOCKS;
  if (of_weights) {
    uint32_t panel = first_panel + tid / 2 % TILE_PANELS;
    scale_block = tid / (2 * TILE_PANELS);
    from_scales = (const uint8_t *)(scales + ((uint64_t)(panel < panels ? panel : panels - 1) * blocks + scale_block) * PANEL + tid % 2 * 8);
  } else {
    token = first_token + (of_token ? step : 0);
    scale_block = tid % TILE_BLOCKS;
    from_scales = (const uint8_t *)(xscales + (uint64_t)(token < n ? token : n - 1) * blocks + scale_block);
  }

  // fetch begins the copies of a stage.
  auto fetch = [&](uint32_t s) {
    uint32_t b = s * TILE_BLOCKS, to = s % TILE_STAGES;
#pragma unroll
    for (uint32_t i = 0; i < copies; i++)
      if (b + (tid + 256 * i) / pieces / TILE_PANELS < blocks) copy16(&weights[to][0][0][0] + tid + 256 * i, from_weights[i] + (uint64_t)b * R::panel_bytes);
    if (b + token_block < blocks) copy16(&tokens[to][0][0][0] + tid, from_token + (uint64_t)b * 32);
    if (b + scale_block < blocks) {
      if (of_weights) copy16(&factors[to][0][0][0] + tid, from_scales + (uint64_t)b * (2 * PANEL));
      if (of_token) copy4(&steps[to][scale_block][step], from_scales + (uint64_t)b * 4);
    }
    end_copies();
  };

  float sum[32] = {}; // (panel, tile of 8 tokens, 4)
  Tree tree;
  tree.level = tree.units = 0;
  uint32_t unit = 0, end = units.begin(1);
  for (uint32_t s = 0; s < TILE_STAGES - 1; s++) fetch(s);
  for (uint32_t b = 0; b < blocks; b++) {
    uint32_t s = b / TILE_BLOCKS, k = b % TILE_BLOCKS, at = s % TILE_STAGES;
    if (k == 0) {
      wait_copies<TILE_STAGES - 2>();
      wait_block();
      fetch(s + TILE_STAGES - 1);
    }
    uint32_t a[2][4];
    float low[2], high[2];
#pragma unroll
    for (int p = 0; p < 2; p++) {
      R::staged(a[p], (const uint8_t *)weights[at][k][pair + p], g, t);
      const uint16_t *f = (const uint16_t *)factors[at][k][pair + p];
      low[p] = from_half(f[g]), high[p] = from_half(f[g + 8]);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
      uint32_t bytes[2];
      R::token(bytes, (const int8_t *)tokens[at][k][half + i * 8 + g], t);
      float2 by = *(const float2 *)&steps[at][k][half + i * 8 + 2 * t];
#pragma unroll
      for (int p = 0; p < 2; p++) {
        float *to = sum + (p * 4 + i) * 4;
        int dot[4] = {};
        multiply8(dot, a[p], bytes);
        to[0] = fma_(from_int(dot[0]), mul_(low[p], by.x), to[0]);
        to[1] = fma_(from_int(dot[1]), mul_(low[p], by.y), to[1]);
        to[2] = fma_(from_int(dot[2]), mul_(high[p], by.x), to[2]);
        to[3] = fma_(from_int(dot[3]), mul_(high[p], by.y), to[3]);
      }
    }
    if (b + 1 < end) continue;
    unit++, end = units.begin(unit + 1);
    if (unit < units.count && !(units.starts >> unit & 1)) {
      tree.push(sum);
      continue;
    }
    tree.end(sum);
#pragma unroll 1
    for (int i = 0; i < 32; i++) {
      uint32_t to = first_token + half + i / 4 % 4 * 8 + 2 * t + i % 2, row = (first_panel + pair + i / 16) * PANEL + g + i / 2 % 2 * 8;
      if (to < n) after.store(to, row, tree.nodes[0][i]);
    }
    after.y += after.node;
  }
}

#define PRODUCT_TILED(name, type) \
  KERNEL THREADS(256, 2) name(const uint8_t *w, const uint16_t *scales, const int8_t *x, const float *xscales, PRODUCT_PARAMETERS) { \
    product_tiled<type>(w, scales, x, xscales, PRODUCT_ARGUMENTS, n); \
  }
PRODUCT_TILED(q8_product_tiled, Rows8)
PRODUCT_TILED(q4_product_tiled, Rows4)
#undef PRODUCT_TILED
