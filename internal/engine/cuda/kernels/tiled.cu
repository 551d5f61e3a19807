// Products of quantized weights with many tokens. A thread block of 256 is 8 panels and 64 tokens, which
// pass through shared memory; a warp is 2 panels and 32 tokens, and does the units one by one.
#define TILE_PANELS 8
#define TILE_TOKENS 64
#define TILE_BLOCKS 2 // of a stage
#define TILE_STAGES 3
#define TILE_SLOTS (TILE_BLOCKS * TILE_STAGES)

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

// Slot is what a thread block has of a block of 32 columns.
template <class R> struct alignas(16) Slot {
  uint8_t weights[TILE_PANELS][R::panel_bytes]; // as R::staged finds them 
  uint8_t tokens[TILE_TOKENS][32];              // as token_tile finds them
  uint16_t factors[TILE_PANELS][PANEL];         // scales of weights
  float steps[TILE_TOKENS];                     // scales of tokens
};

// token_tile is where a lane begins to read the operands of two tiles of 8 tokens, 16 rows of 32 bytes.
DEVICE uint32_t token_tile(uint32_t lane) { return swizzled(lane / 16 * 8 + lane % 8, lane / 8 % 2); }

template <class R> DEVICE void product_tiled(const uint8_t *w, const uint16_t *scales, const int8_t *x, const float *xscales, After after, Units units, uint32_t n) {
  SHARED Slot<R> slots[TILE_SLOTS];
  uint32_t tid = threadIdx.x, lane = tid % 32, g = lane / 4, t = lane % 4, warp = tid / 32;
  uint32_t pair = warp % 4 * 2, half = warp / 4 * 32, blocks = units.held, panels = (after.rows + PANEL - 1) / PANEL;
  uint32_t first_panel = blockIdx.x * TILE_PANELS, first_token = blockIdx.y * TILE_TOKENS;

  // What this thread copies of each block: a piece of weights, and one of tokens, of scales of weights, or a scale
  // of a token. Panels and tokens after the last are read as the last.
  constexpr uint32_t pieces = R::panel_bytes / 16, roles = TILE_TOKENS * 2;
  auto real_panel = [&](uint32_t of) { return (uint64_t)(first_panel + of < panels ? first_panel + of : panels - 1) * blocks; };
  auto real_token = [&](uint32_t of) { return (uint64_t)(first_token + of < n ? first_token + of : n - 1) * blocks; };
  bool of_weights = tid < TILE_PANELS * pieces, of_tokens = tid < roles, of_factors = !of_tokens && tid < roles + 2 * TILE_PANELS, of_steps = tid >= 256 - TILE_TOKENS;
  const uint8_t *weights = w + real_panel(tid / pieces % TILE_PANELS) * R::panel_bytes + tid % pieces * 16, *other = nullptr;
  uint32_t to_weights = R::place(tid / pieces * R::panel_bytes, tid % pieces), to_other = 0, stride = 32;
  constexpr uint32_t tokens = TILE_PANELS * R::panel_bytes, factors = tokens + TILE_TOKENS * 32, steps = factors + 2 * TILE_PANELS * PANEL; // in a Slot
  if (of_tokens) other = (const uint8_t *)x + real_token(tid / 2) * 32 + tid % 2 * 16, to_other = tokens + swizzled(tid / 2, tid % 2);
  else if (of_factors) other = (const uint8_t *)(scales + real_panel((tid - roles) / 2) * PANEL + tid % 2 * 8), to_other = factors + (tid - roles) * 16;
  else if (of_steps) other = (const uint8_t *)(xscales + real_token(tid % TILE_TOKENS)), to_other = steps + tid % TILE_TOKENS * 4, stride = 4;
  // Where this lane reads its operands and their scales in a Slot.
  uint32_t at_weights = pair * R::panel_bytes + R::staged_at(lane), at_tokens = tokens + half * 32 + token_tile(lane), at_factors = factors + (pair * PANEL + g) * 2, at_steps = steps + (half + 2 * t) * 4;
  keep(at_weights), keep(at_tokens), keep(at_factors), keep(at_steps), keep(to_weights);
  uint32_t left = blocks, filling = 0; // blocks to fetch, and the slot of the next

  // fetch begins the copies of a stage of blocks.
  auto fetch = [&] {
#pragma unroll
    for (uint32_t i = 0; i < TILE_BLOCKS; i++) {
      uint8_t *slot = (uint8_t *)&slots[filling];
      if (left > 0) {
        if (of_weights) copy16(slot + to_weights, weights);
        if (of_tokens || of_factors) copy16(slot + to_other, other);
        if (of_steps) copy4(slot + to_other, other);
        left--;
      }
      weights += R::panel_bytes, other += stride;
      filling = filling + 1 < TILE_SLOTS ? filling + 1 : 0;
    }
    end_copies();
  };

  float sum[32] = {}; // (panel, tile of 8 tokens, 4)
  Tree tree;
  tree.level = tree.units = 0;
  uint32_t unit = 0, end = units.begin(1), reading = 0;
  for (uint32_t s = 0; s < TILE_STAGES - 1; s++) fetch();
  for (uint32_t b = 0; b < blocks; b++) {
    if (b % TILE_BLOCKS == 0) {
      wait_copies<TILE_STAGES - 2>();
      wait_block();
      fetch();
    }
    const uint8_t *slot = (const uint8_t *)&slots[reading];
    reading = reading + 1 < TILE_SLOTS ? reading + 1 : 0;
    uint32_t a[2][4], bytes[4];
    float low[2], high[2];
#pragma unroll
    for (int p = 0; p < 2; p++) {
      R::staged(a[p], slot + at_weights + p * R::panel_bytes);
      const uint16_t *f = (const uint16_t *)(slot + at_factors) + p * PANEL;
      low[p] = from_half(f[0]), high[p] = from_half(f[8]);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
      if (i % 2 == 0) load_matrices(bytes, slot + at_tokens + i * 8 * 32);
      float2 by = *(const float2 *)(slot + at_steps + i * 8 * 4);
#pragma unroll
      for (int p = 0; p < 2; p++) {
        float *to = sum + (p * 4 + i) * 4;
        int dot[4] = {};
        multiply8(dot, a[p], bytes + i % 2 * 2);
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
