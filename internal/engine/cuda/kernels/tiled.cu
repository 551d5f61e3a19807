// Products of quantized weights with many tokens. A thread block of 256 is 8 panels and 64 tokens, which
// pass through shared memory; a warp is 2 panels and 32 tokens, and does the units one by one.
#define TILE_PANELS 8
#define TILE_TOKENS 64
#define TILE_BLOCKS 2 // of a stage
#define TILE_STAGES 3
#define TILE_SLOTS (TILE_BLOCKS * TILE_STAGES)

// LocalTree sums units in the canonical order, 32 sums of a thread at a time: a stack of finished nodes,
// like a binary counter. The nodes are in the thread's local memory.
struct LocalTree {
  float nodes[4][32];
  uint32_t level = 0, units = 0; // nodes on the stack; units in them

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
  // end adds the last unit, and clears sum. The sums of all units are then those of get.
  DEVICE_METHOD void end(float *sum) {
#pragma unroll 1
    while (level > 0) merge(sum);
#pragma unroll
    for (int i = 0; i < 32; i++) nodes[0][i] = sum[i], sum[i] = 0;
    units = 0;
  }
  // get returns one of the 32 sums.
  DEVICE_METHOD float get(uint32_t i) const { return nodes[0][i]; }
};

// SharedTree is a LocalTree whose nodes of 2 and of 4 units are in dynamic shared memory, and those of one unit in
// registers. Its methods do the same.
struct SharedTree {
  static constexpr uint32_t quad = 256 * 16, level = 8 * quad; // bytes of all threads

  float one[32];
  volatile float eight[32]; // in local memory, for lack of registers: it is written once
  uint32_t units = 0;
  shared_address nodes = address_of(dynamic_shared()) + threadIdx.x * 16;

  DEVICE_METHOD void merge_one(float *sum) const {
#pragma unroll
    for (int i = 0; i < 32; i++) sum[i] = add_(one[i], sum[i]);
  }
  DEVICE_METHOD void merge_shared(float *sum, uint32_t at) const {
#pragma unroll
    for (int i = 0; i < 32; i += 4) {
      float4 v;
      load_shared(v, nodes + at + i / 4 * quad);
      sum[i] = add_(v.x, sum[i]), sum[i + 1] = add_(v.y, sum[i + 1]), sum[i + 2] = add_(v.z, sum[i + 2]), sum[i + 3] = add_(v.w, sum[i + 3]);
    }
  }
  DEVICE_METHOD void merge_eight(float *sum) const {
#pragma unroll
    for (int i = 0; i < 32; i++) sum[i] = add_(eight[i], sum[i]);
  }
  DEVICE_METHOD void set_shared(const float *sum, uint32_t at) {
#pragma unroll
    for (int i = 0; i < 32; i += 4) store_shared(nodes + at + i / 4 * quad, {sum[i], sum[i + 1], sum[i + 2], sum[i + 3]});
  }
  DEVICE_METHOD void push(float *sum) {
    if (!(units & 1)) {
#pragma unroll
      for (int i = 0; i < 32; i++) one[i] = sum[i];
    } else {
      merge_one(sum);
      if (!(units & 2)) set_shared(sum, 0);
      else {
        merge_shared(sum, 0);
        if (!(units & 4)) set_shared(sum, level);
        else {
          merge_shared(sum, level);
#pragma unroll
          for (int i = 0; i < 32; i++) eight[i] = sum[i];
        }
      }
    }
#pragma unroll
    for (int i = 0; i < 32; i++) sum[i] = 0;
    units++;
  }
  DEVICE_METHOD void end(float *sum) {
    if (units & 1) merge_one(sum);
    if (units & 2) merge_shared(sum, 0);
    if (units & 4) merge_shared(sum, level);
    if (units & 8) merge_eight(sum);
    set_shared(sum, 0);
#pragma unroll
    for (int i = 0; i < 32; i++) sum[i] = 0;
    units = 0;
  }
  DEVICE_METHOD float get(uint32_t i) const {
    float v;
    load_shared(v, nodes + i / 4 * quad + i % 4 * 4);
    return v;
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

template <class R, class Tree> DEVICE void product_tiled(const uint8_t *w, const uint16_t *scales, const int8_t *x, const float *xscales, After after, Units units, uint32_t n) {
  SHARED Slot<R> slots[TILE_SLOTS];
  constexpr uint32_t slot_bytes = sizeof(Slot<R>), stage_bytes = TILE_BLOCKS * slot_bytes, all_bytes = TILE_SLOTS * slot_bytes;
  constexpr uint32_t tokens = TILE_PANELS * R::panel_bytes, factors = tokens + TILE_TOKENS * 32, steps = factors + 2 * TILE_PANELS * PANEL; // in a Slot
  uint32_t tid = threadIdx.x, lane = tid % 32, g = lane / 4, t = lane % 4, warp = tid / 32;
  uint32_t pair = warp % 4 * 2, half = warp / 4 * 32, blocks = units.held, panels = (after.rows + PANEL - 1) / PANEL;
  uint32_t first_panel = blockIdx.x * TILE_PANELS, first_token = blockIdx.y * TILE_TOKENS;
  shared_address memory = address_of(slots);

  // A thread copies parts of one block of a stage: 16 bytes of a panel once in 256, 16 bytes of a token, and of some
  // threads 16 bytes of the scales of weights, or the scale of a token. Panels and tokens after the last are read as
  // the last.
  auto real_panel = [&](uint32_t of) { return (uint64_t)(first_panel + of < panels ? first_panel + of : panels - 1) * blocks; };
  auto real_token = [&](uint32_t of) { return (uint64_t)(first_token + of < n ? first_token + of : n - 1) * blocks; };
  constexpr uint32_t copiers = 256 / TILE_BLOCKS; // of a block
  static_assert(copiers == TILE_PANELS * PANEL && copiers == TILE_TOKENS * 2, "threads that copy a block");
  uint32_t of = tid / copiers, copier = tid % copiers;
  bool of_factors = copier < 2 * TILE_PANELS, of_steps = copier >= copiers - TILE_TOKENS;
  const uint8_t *weights = w + (real_panel(copier / 16) + of) * R::panel_bytes + copier % 16 * 16;
  const uint8_t *bytes_of_token = (const uint8_t *)x + (real_token(copier / 2) + of) * 32 + copier % 2 * 16, *other = nullptr;
  shared_address to = memory + of * slot_bytes, to_weights = to + R::place(copier / 16 * R::panel_bytes, copier % 16);
  shared_address to_token = to + tokens + swizzled(copier / 2, copier % 2), to_other = 0;
  uint32_t stride = 0;
  if (of_factors) other = (const uint8_t *)(scales + (real_panel(copier / 2) + of) * PANEL + copier % 2 * 8), to_other = to + factors + copier * 16, stride = TILE_BLOCKS * 2 * PANEL;
  if (of_steps) other = (const uint8_t *)(xscales + real_token(copier % TILE_TOKENS) + of), to_other = to + steps + copier % TILE_TOKENS * 4, stride = TILE_BLOCKS * 4;
  int left = blocks - of; // this thread's block of the next stage exists if it is above 0
  uint32_t filling = 0;   // where the next stage goes

  // fetch begins the copies of a stage of blocks.
  auto fetch = [&] {
    if (left > 0) {
#pragma unroll
      for (uint32_t i = 0; i < R::panel_bytes; i += 256) copy16(to_weights + filling + i, weights + i);
      copy16(to_token + filling, bytes_of_token);
      if (of_factors) copy16(to_other + filling, other);
      if (of_steps) copy4(to_other + filling, other);
    }
    end_copies();
    left -= TILE_BLOCKS, weights += TILE_BLOCKS * R::panel_bytes, bytes_of_token += TILE_BLOCKS * 32, other += stride;
    filling = filling < all_bytes - stage_bytes ? filling + stage_bytes : 0;
  };

  // Where this lane reads its operands and their scales in a Slot.
  shared_address at_weights = memory + pair * R::panel_bytes + R::staged_at(lane), at_tokens = memory + tokens + half * 32 + token_tile(lane);
  shared_address at_factors = memory + factors + (pair * PANEL + g) * 2, at_steps = memory + steps + (half + 2 * t) * 4;
  keep(at_weights), keep(at_tokens), keep(at_factors), keep(at_steps), keep(to_weights), keep(to_token), keep(to_other);
  float sum[32] = {}; // (panel, tile of 8 tokens, 4)
  Tree tree;
  uint32_t b = 0, reading = 0; // block, and where it is
  for (uint32_t s = 0; s < TILE_STAGES - 1; s++) fetch();
#pragma unroll 1
  for (uint32_t unit = 1; unit <= units.count; unit++) {
#pragma unroll 1
    for (uint32_t end = units.begin(unit); b < end; b++) {
      if (b % TILE_BLOCKS == 0) {
        wait_copies<TILE_STAGES - 2>();
        wait_block();
        fetch();
      }
      uint32_t a[2][4], bytes[4];
      float low[2], high[2];
#pragma unroll
      for (int p = 0; p < 2; p++) {
        uint16_t of_low, of_high;
        R::staged(a[p], at_weights + reading + p * R::panel_bytes);
        load_shared(of_low, at_factors + reading + p * PANEL * 2), load_shared(of_high, at_factors + reading + p * PANEL * 2 + 16);
        low[p] = from_half(of_low), high[p] = from_half(of_high);
      }
#pragma unroll
      for (int i = 0; i < 4; i++) {
        float2 by;
        if (i % 2 == 0) load_matrices(bytes, at_tokens + reading + i * 8 * 32);
        load_shared(by, at_steps + reading + i * 8 * 4);
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
      reading = reading < all_bytes - slot_bytes ? reading + slot_bytes : 0;
    }
    if (unit < units.count && !(units.starts >> unit & 1)) {
      tree.push(sum);
      continue;
    }
    tree.end(sum);
#pragma unroll 1
    for (uint32_t i = 0; i < 32; i += 8) {
      float v[8];
      uint32_t token[8], row[8];
#pragma unroll
      for (uint32_t j = 0; j < 8; j++) {
        v[j] = tree.get(i + j);
        token[j] = first_token + half + (i + j) / 4 % 4 * 8 + 2 * t + j % 2, row[j] = (first_panel + pair + i / 16) * PANEL + g + j / 2 % 2 * 8;
      }
      after.store<8>(token, n, row, v);
    }
    after.y += after.node;
  }
}

#define PRODUCT_TILED(name, type, tree) \
  KERNEL THREADS(256, 2) name(const uint8_t *w, const uint16_t *scales, const int8_t *x, const float *xscales, PRODUCT_PARAMETERS) { \
    product_tiled<type, tree>(w, scales, x, xscales, PRODUCT_ARGUMENTS, n); \
  }
PRODUCT_TILED(q8_product_tiled, Rows8, LocalTree)
PRODUCT_TILED(q4_product_tiled, Rows4, LocalTree)
PRODUCT_TILED(q8_product_tiled_shared, Rows8, SharedTree)
PRODUCT_TILED(q4_product_tiled_shared, Rows4, SharedTree)
#undef PRODUCT_TILED
