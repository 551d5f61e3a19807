// Elements of a head.
#define MAX_HEAD 256
// Slots of a block of a cache.
#define SLOTS 64

// Row is launch.Row: where a token of a step has its cache.
struct Row {
  uint32_t slot, table, stride, unused;
};

// Cache finds the blocks of a KV head, in the layout of tensor.KVLayout.
template <int type> struct Cache {
  const uint32_t *table;
  uint8_t *arena;
  uint32_t dim;

  DEVICE_METHOD Cache(const uint32_t *tables, uint8_t *arena, Row r, uint32_t head, uint32_t dim) : table(tables + r.table + (uint64_t)head * r.stride), arena(arena), dim(dim) {}
  DEVICE_METHOD uint32_t values_at() const { return SLOTS * dim * bytes_of<type>; }
  DEVICE_METHOD uint32_t scales_at() const { return 2 * values_at(); }
  DEVICE_METHOD uint8_t *numbered(uint32_t block) const { return arena + (uint64_t)block * (scales_at() + (type == INT8 ? 8 * SLOTS : 0)); }
  DEVICE_METHOD uint8_t *block(uint32_t b) const { return numbered(table[b]); }
  // key is the index of element k of a slot's key.
  DEVICE_METHOD uint32_t key(uint32_t slot, uint32_t k) const {
    uint32_t panel = slot / PANEL * dim * PANEL;
    return type == BF16 ? panel + (k & ~1u) * PANEL + slot % PANEL * 2 + (k & 1) : panel + k * PANEL + slot % PANEL;
  }
};

// Place is launch.Place: the slot of a token's key and value in a cache of one KV head. The row that they
// replace is saved in row `saved` of a block in row form (tensor.KVLayout.SaveRow), unless there is none.
struct Place {
  uint32_t slot, block, saved, unused;
};

template <typename T> DEVICE void copy_number(uint8_t *to, uint32_t i, const uint8_t *from, uint32_t j) { ((T *)to)[i] = ((const T *)from)[j]; }

// copy_row copies the key (at 0) or the value (at 1) of a slot of a block to a row of a block in row form, or back. It is
// called by a warp.
template <int type, bool back> DEVICE void copy_row(const Cache<type> &c, uint8_t *block, uint32_t slot, uint8_t *rows, uint32_t row, int at) {
  uint8_t *to = back ? block : rows, *from = back ? rows : block;
  if (type == INT8 && threadIdx.x == 0)
    copy_number<uint32_t>(to + c.scales_at(), at * SLOTS + (back ? slot : row), from + c.scales_at(), at * SLOTS + (back ? row : slot));
  to += at * c.values_at(), from += at * c.values_at();
  for (uint32_t i = threadIdx.x; i < c.dim; i += 32) {
    uint32_t k = at ? slot * c.dim + i : c.key(slot, i), r = row * c.dim + i;
    uint32_t into = back ? k : r, of = back ? r : k;
    if constexpr (type == F32) copy_number<uint32_t>(to, into, from, of);
    else if constexpr (type == BF16) copy_number<uint16_t>(to, into, from, of);
    else copy_number<uint8_t>(to, into, from, of);
  }
}

// row_scale is tensor.int8Scale of n numbers of a warp in shared memory: the scale, and its inverse, or
// 0 for both.
DEVICE float row_scale(const float *x, uint32_t n, float *inverse) {
  uint32_t top = 0;
  for (uint32_t i = threadIdx.x % 32; i < n; i += 32) {
    uint32_t bits = as_bits(x[i]) & 0x7fffffff;
    top = top > bits ? top : bits;
  }
  for (int m = 16; m; m >>= 1) {
    uint32_t other = from_lane_xor(top, m);
    top = top > other ? top : other;
  }
  float scale = div_(as_float(top), 127.f);
  *inverse = div_(1.f, scale);
  if (top >= 0x7f800000 || !(scale > 0) || *inverse > 3.402823466e38f) scale = *inverse = 0;
  return scale;
}

DEVICE int8_t to_int8(float x, float inverse) {
  if (inverse == 0) return 0;
  float q = nearest_(mul_(x, inverse));
  return (int8_t)(int)fmaxf(-127.f, fminf(127.f, q));
}

// put writes a key (at 0) or a value (at 1) of a warp into its slot.
template <int type> DEVICE void put(const Cache<type> &c, uint32_t slot, int at, const float *x) {
  uint8_t *block = c.block(slot / SLOTS);
  uint32_t of = slot % SLOTS;
  float inverse = 0;
  if constexpr (type == INT8) {
    float scale = row_scale(x, c.dim, &inverse);
    if (threadIdx.x % 32 == 0) ((float *)(block + c.scales_at()))[at * SLOTS + of] = scale;
  }
  uint8_t *to = block + at * c.values_at();
  for (uint32_t i = threadIdx.x % 32; i < c.dim; i += 32) {
    uint32_t k = at ? of * c.dim + i : c.key(of, i);
    if constexpr (type == F32) ((float *)to)[k] = x[i];
    else if constexpr (type == BF16) ((uint16_t *)to)[k] = to_bf16(x[i]);
    else ((int8_t *)to)[k] = to_int8(x[i], inverse);
  }
}

// Turn is what is done with query and key heads before attention: their norm by weights, where there are some, and the
// rotation by cosine and sine (rows, dim/2).
struct Turn {
  const float *cosine, *sine, *qnorm, *knorm;
  float eps;

  // head turns a head of a row, which a warp has in shared memory.
  DEVICE_METHOD void head(float *x, const float *norm, uint32_t row, uint32_t dim) const {
    uint32_t half = dim / 2, lane = threadIdx.x % 32;
    if (norm) {
      float factor = rms_factor(x, dim, eps);
      wait_warp();
      for (uint32_t i = lane; i < dim; i += 32) x[i] = mul_(mul_(x[i], factor), norm[i]);
      wait_warp();
    }
    const float *c = cosine + (uint64_t)row * half, *s = sine + (uint64_t)row * half;
    for (uint32_t i = lane; i < half; i += 32) {
      float a = x[i], b = x[i + half];
      x[i] = sub_(mul_(a, c[i]), mul_(b, s[i]));
      x[i + half] = add_(mul_(b, c[i]), mul_(a, s[i]));
    }
    wait_warp();
  }
};
#define TURN_PARAMETERS const float *cosine, const float *sine, const float *qnorm, const float *knorm, float eps
#define TURN Turn{cosine, sine, qnorm, knorm, eps}

// rope_write prepares rows of queries, keys and values, ld apart, for attention: norms of query and
// key heads where there are some, rotation, and the write into the cache of cache number index. A warp has a head of a
// row.
template <int type> DEVICE void rope_write(float *qkv, uint32_t ld, Turn turn, const Row *rows, const uint32_t *tables, uint8_t *arena, uint32_t heads, uint32_t kvheads, uint32_t dim, uint32_t index, const Place *places) {
  SHARED float x[MAX_HEAD];
  uint32_t head = blockIdx.x, lane = threadIdx.x;
  bool query = head < heads, value = head >= heads + kvheads;
  float *from = qkv + (uint64_t)blockIdx.y * ld + head * dim;
  for (uint32_t i = lane; i < dim; i += 32) x[i] = from[i];
  wait_warp();
  if (!value) turn.head(x, query ? turn.qnorm : turn.knorm, blockIdx.y, dim);
  if (query) {
    for (uint32_t i = lane; i < dim; i += 32) from[i] = x[i];
    return;
  }
  Row r = rows[blockIdx.y];
  head = (head - heads) % kvheads;
  Cache<type> cache(tables, arena, r, index * kvheads + head, dim);
  Place place = {r.slot, ~0u};
  if (places) place = places[blockIdx.y * kvheads + head];
  if (place.block != ~0u) copy_row<type, false>(cache, cache.block(place.slot / SLOTS), place.slot % SLOTS, cache.numbered(place.block), place.saved, value);
  put(cache, place.slot, value, x);
}

#define ROPE_WRITE(name, type) \
  KERNEL THREADS(32, 16) name(float *qkv, uint32_t ld, TURN_PARAMETERS, const Row *rows, const uint32_t *tables, uint8_t *arena, uint32_t heads, uint32_t kvheads, uint32_t dim, uint32_t index, const Place *places) { \
    rope_write<type>(qkv, ld, TURN, rows, tables, arena, heads, kvheads, dim, index, places); \
  }
ROPE_WRITE(rope_write_f32, F32)
ROPE_WRITE(rope_write_bf16, BF16)
ROPE_WRITE(rope_write_int8, INT8)
#undef ROPE_WRITE

// SavedRow is launch.SavedRow: a row of a block in row form, and the slot of a block that it was copied from.
struct SavedRow {
  uint32_t block, slot, from, row;
};

// restore_rows copies saved rows of caches back to their slots. A warp has the key or the value of a row.
template <int type> DEVICE void restore_rows(const SavedRow *saved, uint8_t *arena, uint32_t dim) {
  SavedRow s = saved[blockIdx.x];
  Cache<type> cache(nullptr, arena, Row{}, 0, dim);
  copy_row<type, true>(cache, cache.numbered(s.block), s.slot, cache.numbered(s.from), s.row, blockIdx.y);
}

#define RESTORE_ROWS(name, type) \
  KERNEL THREADS(32, 16) name(const SavedRow *saved, uint8_t *arena, uint32_t dim) { restore_rows<type>(saved, arena, dim); }
RESTORE_ROWS(restore_rows_f32, F32)
RESTORE_ROWS(restore_rows_bf16, BF16)
RESTORE_ROWS(restore_rows_int8, INT8)
#undef RESTORE_ROWS
