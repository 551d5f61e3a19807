// Attention of single tokens, in runs of 1024 slots (docs/decisions/canonical-arithmetic.md). A
// thread block computes a run for up to 4 query heads of a KV head; attend_fold joins the runs.
#define RUN 1024
#define QUERIES 4

// Output is where attention goes: rows of ld numbers, or rounded to bytes and scales (rows, heads*dim), or both. sinks
// may be null.
struct Output {
  const float *sinks;
  float *out;
  uint32_t ld;
  int8_t *bytes;
  float *scales;

  // inverse is 1 / (the sum of 16 lanes and the sink of a head).
  DEVICE_METHOD float inverse(float sum, uint32_t head, float top) const {
    for (int m = 8; m; m >>= 1) sum = add_(sum, from_lane_xor(sum, m));
    if (sinks) sum = add_(sum, exp_(sub_(sinks[head], top)));
    return div_(1.f, sum);
  }
  // store writes a column of a warp's 32.
  DEVICE_METHOD void store(uint32_t row, uint32_t heads, uint32_t dim, uint32_t head, uint32_t column, float y) const {
    uint32_t at = head * dim + column;
    uint64_t rounded = (uint64_t)row * heads * dim + at;
    if (column < dim && out) out[(uint64_t)row * ld + at] = y;
    if (bytes && column / 32 * 32 < dim) quantize(y, bytes + rounded / 32 * 32, scales + rounded / 32, column % 32); // dim is a multiple of 32
  }
};
#define OUTPUT_PARAMETERS const float *sinks, float *out, uint32_t ldout, int8_t *bytes, float *scales
#define OUTPUT Output{sinks, out, ldout, bytes, scales}

// Score is tensor.Score without sinks.
struct Score {
  float scale, cap;

  DEVICE_METHOD float of(float product) const {
    float t = mul_(product, scale);
    return cap != 0 ? soft_cap(t, cap) : t;
  }
};

// window_start is the first slot that a token at a slot sees: window > 0 is the number of slots, and
// window < 0 the length of a chunk.
DEVICE uint32_t window_start(uint32_t slot, int window) {
  if (window > 0) return slot + 1 > (uint32_t)window ? slot + 1 - window : 0;
  if (window < 0) return slot - slot % (uint32_t)-window;
  return 0;
}

// key_pair reads two elements of a slot's key, the first of them even, without the scale of Int8. The
// next pair is key_step bytes further.
template <int type> constexpr uint32_t key_step = 2 * PANEL * bytes_of<type>;

template <int type> DEVICE void key_pair(float *to, const uint8_t *key) {
  if constexpr (type == F32) to[0] = ((const float *)key)[0], to[1] = ((const float *)key)[PANEL];
  else if constexpr (type == BF16) {
    uint32_t v = *(const uint32_t *)key;
    to[0] = as_float(v << 16), to[1] = as_float(v & 0xffff0000);
  } else to[0] = from_int(((const int8_t *)key)[0]), to[1] = from_int(((const int8_t *)key)[PANEL]);
}

// value reads n elements of a value, 1, 2 or 4, without the scale of Int8.
template <int type, int n> DEVICE void value(float *to, const uint8_t *from) {
  if constexpr (n == 4) {
    value<type, 2>(to, from), value<type, 2>(to + 2, from + 2 * bytes_of<type>);
  } else if constexpr (type == F32) {
    for (int i = 0; i < n; i++) to[i] = ((const float *)from)[i];
  } else if constexpr (type == INT8) {
    for (int i = 0; i < n; i++) to[i] = from_int(((const int8_t *)from)[i]);
  } else if constexpr (n == 1) to[0] = from_bf16(*(const uint16_t *)from);
  else {
    uint32_t v = *(const uint32_t *)from;
    to[0] = as_float(v << 16), to[1] = as_float(v & 0xffff0000);
  }
}

// Memory of the state of a run: dim elements of the output, 16 lanes of the sum, the largest score.
DEVICE uint32_t state_floats(uint32_t dim) { return dim + 32; }

// stage_slots is the slots whose values fill a stage: a power of two, at most a block.
DEVICE uint32_t stage_slots(uint32_t row_bytes, uint32_t stage_bytes) {
  uint32_t n = SLOTS;
  while (n * row_bytes > stage_bytes) n /= 2;
  return n;
}

// add_slot adds a slot to `columns` columns (2, or 1) of as many queries: o = fma(p, v, o).
template <int type, int columns> DEVICE void add_slot(float (*o)[columns], const uint8_t *from, const float *p) {
  float v[columns];
  value<type, columns>(v, from);
#pragma unroll
  for (int g = 0; g < columns; g++)
#pragma unroll
    for (int c = 0; c < columns; c++) o[g][c] = fma_(p[g], v[c], o[g][c]);
}

// score_elements adds n elements of a slot's key to the products with QUERIES queries. All loads come before
// the first use.
template <int type, int n> DEVICE void score_elements(float *s, const uint8_t *key, const float4 *query) {
  float k[n];
#pragma unroll
  for (int i = 0; i < n; i += 2) key_pair<type>(k + i, key + i / 2 * key_step<type>);
#pragma unroll
  for (int i = 0; i < n; i++) {
    float4 q = query[i];
    s[0] = fma_(k[i], q.x, s[0]), s[1] = fma_(k[i], q.y, s[1]), s[2] = fma_(k[i], q.z, s[2]), s[3] = fma_(k[i], q.w, s[3]);
  }
}

// add_quads adds n slots, a multiple of 4, whose probabilities are aligned to 16 bytes.
template <int type, int columns, int n> DEVICE void add_quads(float (*o)[columns], const uint8_t *values, uint32_t row_bytes, const float *weights) {
#pragma unroll
  for (int slot = 0; slot < n; slot += 4) {
    float4 w[columns];
#pragma unroll
    for (int g = 0; g < columns; g++) w[g] = *(const float4 *)(weights + g * RUN + slot);
#pragma unroll
    for (int k = 0; k < 4; k++) {
      float x[columns];
#pragma unroll
      for (int g = 0; g < columns; g++) x[g] = k == 0 ? w[g].x : k == 1 ? w[g].y : k == 2 ? w[g].z : w[g].w;
      add_slot<type, columns>(o, values + (slot + k) * row_bytes, x);
    }
  }
}

// add_column adds n slots to one column of one query, as add_quads. All loads come before the first use.
template <int type, int n> DEVICE float add_column(float o, const uint8_t *values, uint32_t row_bytes, const float *weights) {
  float v[n];
  float4 w[n / 4];
#pragma unroll
  for (int i = 0; i < n; i++) value<type, 1>(v + i, values + i * row_bytes);
#pragma unroll
  for (int i = 0; i < n / 4; i++) w[i] = ((const float4 *)weights)[i];
#pragma unroll
  for (int i = 0; i < n / 4; i++) o = fma_(w[i].w, v[4 * i + 3], fma_(w[i].z, v[4 * i + 2], fma_(w[i].y, v[4 * i + 1], fma_(w[i].x, v[4 * i], o))));
  return o;
}

// The first parameters of attention.
#define CACHED_PARAMETERS const float *q, uint32_t ldq, const Row *rows, const uint32_t *tables, uint8_t *arena, uint32_t heads, uint32_t kvheads, uint32_t dim, uint32_t index, float scale, float cap, int window

#define SCORED 32 // slots of a thread block

// attend_scores computes the scores of a row and up to QUERIES heads for SCORED slots: scores[(row, head), slot], ld
// apart. A warp has a panel of 16 slots and two heads; keys pass through shared memory. 128 threads. With a rotation,
// there is one row, whose keys and values follow its queries: it does what rope_write does, but does not store queries.
template <int type> DEVICE void attend_scores(const float *q, uint32_t ldq, const Row *rows, const uint32_t *tables, uint8_t *arena, uint32_t heads, uint32_t kvheads, uint32_t dim, uint32_t index, Score score, int window, float *scores, uint32_t ld, Turn turn) {
  SHARED uint4 keys[SCORED * MAX_HEAD * bytes_of<type> / 16];
  SHARED float queries[MAX_HEAD * QUERIES]; // (dim, QUERIES)
  SHARED float turned[QUERIES][MAX_HEAD];   // a head of each warp
  uint32_t t = threadIdx.x, group = heads / kvheads, tiles = (group + QUERIES - 1) / QUERIES;
  uint32_t tile = blockIdx.y % tiles, kv = blockIdx.y / tiles % kvheads, row = blockIdx.y / tiles / kvheads, first = blockIdx.x * SCORED;
  Row r = rows[row];
  if (first > r.slot || first + SCORED <= window_start(r.slot, window)) return;
  uint32_t first_head = kv * group + tile * QUERIES, mine = group - tile * QUERIES < QUERIES ? group - tile * QUERIES : QUERIES;
  Cache<type> cache(tables, arena, r, index * kvheads + kv, dim);
  const uint8_t *block = cache.block(first / SLOTS), *from = block + cache.key(first % SLOTS, 0) * bytes_of<type>;
  uint32_t bytes = SCORED * dim * bytes_of<type>;
  q += (uint64_t)row * ldq;
  if (turn.cosine && r.slot - first < SCORED) { // this row's own key
    if (t < 64) {
      bool value = t >= 32;
      float *x = turned[t / 32];
      const float *from = q + (heads + (value ? kvheads : 0) + kv) * dim;
      for (uint32_t i = t % 32; i < dim; i += 32) x[i] = from[i];
      wait_warp();
      if (!value) turn.head(x, turn.knorm, row, dim);
      put(cache, r.slot, value, x);
    }
    wait_block();
  }
  for (uint32_t i = t * 16; i < bytes; i += 128 * 16) copy16((uint8_t *)keys + i, from + i);
  end_copies();
  q += first_head * dim;
  if (turn.cosine) {
    uint32_t g = t / 32;
    float *x = turned[g];
    if (g < mine) {
      for (uint32_t i = t % 32; i < dim; i += 32) x[i] = q[g * dim + i];
      wait_warp();
      turn.head(x, turn.qnorm, row, dim);
    }
    for (uint32_t i = t % 32; i < dim; i += 32) queries[i * QUERIES + g] = g < mine ? x[i] : 0;
  } else {
    for (uint32_t i = t; i < QUERIES * dim; i += 128) {
      uint32_t g = i / dim, k = i % dim;
      queries[k * QUERIES + g] = g < mine ? q[i] : 0;
    }
  }
  wait_copies<0>();
  wait_block();
  uint32_t slot = t / 32 % 2 * PANEL + t % PANEL, head = t / 64 * 2 + t / 16 % 2;
  const uint8_t *key = (const uint8_t *)keys + cache.key(slot, 0) * bytes_of<type>;
  const float *query = queries + head;
  float s = 0;
#pragma unroll 4
  for (uint32_t k = 0; k < dim; k += 8, key += 4 * key_step<type>, query += 8 * QUERIES) {
    float v[8];
#pragma unroll
    for (int i = 0; i < 8; i += 2) key_pair<type>(v + i, key + i / 2 * key_step<type>);
#pragma unroll
    for (int i = 0; i < 8; i++) s = fma_(v[i], query[i * QUERIES], s);
  }
  if constexpr (type == INT8) s = mul_(s, ((const float *)(block + cache.scales_at()))[first % SLOTS + slot]);
  if (head < mine) scores[((uint64_t)row * heads + first_head + head) * ld + first + slot] = score.of(s);
}

#define ATTEND_SCORES(name, type) \
  KERNEL THREADS(128, 4) name(CACHED_PARAMETERS, float *scores, uint32_t ld, TURN_PARAMETERS) { \
    attend_scores<type>(q, ldq, rows, tables, arena, heads, kvheads, dim, index, {scale, cap}, window, scores, ld, TURN); \
  }
ATTEND_SCORES(attend_scores_f32, F32)
ATTEND_SCORES(attend_scores_bf16, BF16)
ATTEND_SCORES(attend_scores_int8, INT8)
#undef ATTEND_SCORES

// Tops are the largest scores of the blocks of a run, for QUERIES queries, and the correction factors of the softmax by
// blocks.
struct Tops {
  float4 largest[RUN / SLOTS], correct[RUN / SLOTS]; // up to a block; the factor of what was before it

  // follow fills both from the largest scores of blocks, of `of` parts each. Blocks [first, last] are seen. 64 threads.
  template <uint32_t of> DEVICE_METHOD void follow(const float4 *tops, uint32_t first, uint32_t last) {
    uint32_t b = threadIdx.x / QUERIES, g = threadIdx.x % QUERIES;
    float before = as_float(0xff800000), m = before;
#pragma unroll
    for (uint32_t i = 0; i < RUN / SLOTS; i++) {
      float x = ((const float *)tops)[i * of * QUERIES + g];
#pragma unroll
      for (uint32_t j = 1; j < of; j++) x = fmaxf(x, ((const float *)tops)[(i * of + j) * QUERIES + g]);
      if (i >= first && i <= b && i <= last) before = m, m = fmaxf(m, x);
    }
    ((float *)largest)[threadIdx.x] = m;
    ((float *)correct)[threadIdx.x] = exp_(sub_(before, m));
  }

  // weigh replaces scores of all queries, RUN apart, by probabilities before the division; 0 where a slot is not seen.
  DEVICE_METHOD void weigh(float *p, uint32_t low, uint32_t count) const {
    for (uint32_t slot = threadIdx.x; slot / SLOTS * SLOTS < count; slot += 256) {
      bool seen = slot >= low && slot < count;
      float4 m = largest[slot / SLOTS];
      float a = exp_(sub_(p[slot], m.x)), b = exp_(sub_(p[RUN + slot], m.y));
      float c = exp_(sub_(p[2 * RUN + slot], m.z)), d = exp_(sub_(p[3 * RUN + slot], m.w));
      p[slot] = seen ? a : 0, p[RUN + slot] = seen ? b : 0, p[2 * RUN + slot] = seen ? c : 0, p[3 * RUN + slot] = seen ? d : 0;
    }
  }

  // add_block adds a block to a lane of the sum of a query, of 16 lanes.
  DEVICE_METHOD float add_block(float sum, const float *p, uint32_t b, uint32_t query, uint32_t lane) const {
    sum = mul_(sum, ((const float *)correct)[b * QUERIES + query]);
    for (int j = 0; j < 4; j++) sum = add_(sum, p[query * RUN + b * SLOTS + j * 16 + lane]);
    return sum;
  }

  // scale multiplies the probabilities by the scales of Int8 values.
  template <class C> DEVICE_METHOD void scale(float *p, const C &cache, uint32_t low, uint32_t count) const {
    for (uint32_t slot = low + threadIdx.x; slot < count; slot += 256) {
      float by = ((const float *)(cache.block(slot / SLOTS) + cache.scales_at()))[SLOTS + slot % SLOTS];
      for (int g = 0; g < QUERIES; g++) p[g * RUN + slot] = mul_(p[g * RUN + slot], by);
    }
  }
};

// Task is what a thread block of attention computes: a run of a row for up to QUERIES heads of a KV head. Slots
// [low, count) of the run are seen.
struct Task {
  uint32_t run, kv, row, first_head, mine;
  uint32_t count, low;

  // in reads blockIdx.y, which counts rows, KV heads and tiles of heads.
  DEVICE_METHOD static Task in(uint32_t y, uint32_t heads, uint32_t kvheads) {
    uint32_t group = heads / kvheads, tiles = (group + QUERIES - 1) / QUERIES, tile = y % tiles;
    Task a = {blockIdx.x, y / tiles % kvheads, y / tiles / kvheads, 0, group - tile * QUERIES < QUERIES ? group - tile * QUERIES : QUERIES, 0, 0};
    a.first_head = a.kv * group + tile * QUERIES;
    return a;
  }
  // see sets the slots that a row sees, and reports whether there are some.
  DEVICE_METHOD bool see(uint32_t slot, int window) {
    uint32_t start = window_start(slot, window);
    if (run * RUN > slot || (run + 1) * RUN <= start) return false;
    count = slot + 1 - run * RUN < RUN ? slot + 1 - run * RUN : RUN, low = start > run * RUN ? start - run * RUN : 0;
    return true;
  }
  DEVICE_METHOD bool sees(uint32_t slot) const { return slot >= low && slot < count; }
};

// attend computes one run (blockIdx.x) of attention of a row and up to QUERIES heads: scores of all
// slots, the softmax by blocks with a running maximum, then the values in slot order. 256 threads.
template <int type> DEVICE void attend(const float *q, uint32_t ldq, const Row *rows, const uint32_t *tables, uint8_t *arena, uint32_t heads, uint32_t kvheads, uint32_t dim, uint32_t index, Score score, int window, float *states) {
  constexpr uint32_t STAGES = 3, STAGE_BYTES = 8192;
  SHARED uint4 stages[STAGES * STAGE_BYTES / 16];
  SHARED float4 probabilities[QUERIES * RUN / 4]; // (queries, RUN), scores at first
  SHARED float4 queries[MAX_HEAD]; // one element of each query
  SHARED float4 block_tops[2 * RUN / SLOTS];
  SHARED Tops tops;
  uint32_t t = threadIdx.x;
  Task task = Task::in(blockIdx.y, heads, kvheads);
  Row r = rows[task.row];
  if (!task.see(r.slot, window)) return;
  uint32_t count = task.count, low = task.low;
  Cache<type> cache(tables, arena, r, index * kvheads + task.kv, dim);
  cache.table += task.run * (RUN / SLOTS);
  uint32_t row_bytes = dim * bytes_of<type>;
  uint32_t slots = stage_slots(row_bytes, STAGE_BYTES), size = slots * row_bytes;
  uint32_t stage = low / slots, last_stage = (count - 1) / slots;

  auto fetch = [&](uint32_t s) {
    if (s <= last_stage) {
      const uint8_t *from = cache.block(s * slots / SLOTS) + cache.values_at() + s * slots % SLOTS * row_bytes;
      uint8_t *to = (uint8_t *)stages + s % STAGES * STAGE_BYTES;
#pragma unroll
      for (uint32_t i = t * 16; i < STAGE_BYTES; i += 256 * 16)
        if (i < size) copy16(to + i, from + i);
    }
    end_copies();
  };
  for (uint32_t i = 0; i < STAGES - 1; i++) fetch(stage + i);

  q += (uint64_t)task.row * ldq + task.first_head * dim;
  for (uint32_t i = t; i < QUERIES * dim; i += 256) {
    uint32_t g = i / dim, k = i % dim;
    ((float *)queries)[k * QUERIES + g] = g < task.mine ? q[i] : 0;
  }
  wait_block();

  // Scores.
  float *p = (float *)probabilities;
  for (uint32_t slot = t; slot / SLOTS * SLOTS < count; slot += 256) { // whole warps
    float s[QUERIES] = {};
    if (task.sees(slot)) {
      const uint8_t *block = cache.block(slot / SLOTS);
      const uint8_t *from = block + cache.key(slot % SLOTS, 0) * bytes_of<type>;
      const float4 *query = queries;
      uint32_t left = dim;
      for (; left >= 32; left -= 32, from += 16 * key_step<type>, query += 32) score_elements<type, 32>(s, from, query);
      for (; left > 0; left -= 8, from += 4 * key_step<type>, query += 8) score_elements<type, 8>(s, from, query);
      float by = 1;
      if constexpr (type == INT8) by = ((const float *)(block + cache.scales_at()))[slot % SLOTS];
#pragma unroll
      for (int g = 0; g < QUERIES; g++) s[g] = score.of(type == INT8 ? mul_(s[g], by) : s[g]);
    }
    float top[QUERIES];
#pragma unroll
    for (int g = 0; g < QUERIES; g++) {
      top[g] = task.sees(slot) ? fmaxf(s[g], as_float(0xff800000)) : as_float(0xff800000); // without NaN
      for (int m = 16; m; m >>= 1) top[g] = fmaxf(top[g], from_lane_xor(top[g], m));
      p[g * RUN + slot] = s[g];
    }
    if (t % 32 == 0) block_tops[slot / 32] = {top[0], top[1], top[2], top[3]};
  }
  wait_block();
  uint32_t first_block = low / SLOTS, last_block = (count - 1) / SLOTS;
  if (t < QUERIES * RUN / SLOTS) tops.follow<2>(block_tops, first_block, last_block);
  wait_block();
  tops.weigh(p, low, count);
  wait_block();

  // Sums: thread 192+i has lane i%16 of query i/16.
  float sum = 0;
  uint32_t of = (t - 192) / 16, lane = t % 16;
  bool sums = t >= 192;
  if constexpr (type == INT8) { // then the probabilities of values are scaled
    if (sums)
      for (uint32_t b = first_block; b <= last_block; b++) sum = tops.add_block(sum, p, b, of, lane);
    wait_block();
    tops.scale(p, cache, low, count);
  }

  // Values: a thread has two columns of two queries.
  constexpr int each = 2;
  uint32_t lanes = dim / each, column = t % lanes, first = t / lanes * each; // query
  bool works = first < QUERIES;
  float o[each][each] = {};
  for (; stage <= last_stage; stage++) {
    wait_copies<STAGES - 2>();
    wait_block();
    fetch(stage + STAGES - 1);
    uint32_t base = stage * slots, b = base / SLOTS, from = base > low ? base : low, to = base + slots < count ? base + slots : count;
    bool begins = base % SLOTS == 0 || stage == low / slots; // a block
    if (type != INT8 && begins && sums) sum = tops.add_block(sum, p, b, of, lane);
    if (!works) continue;
    if (begins) {
#pragma unroll
      for (int g = 0; g < each; g++) {
        float c = ((float *)tops.correct)[b * QUERIES + first + g];
#pragma unroll
        for (int i = 0; i < each; i++) o[g][i] = mul_(o[g][i], c);
      }
    }
    const uint8_t *values = (const uint8_t *)stages + stage % STAGES * STAGE_BYTES + (from - base) * row_bytes + column * (each * bytes_of<type>);
    const float *weights = p + first * RUN + from, *last = weights + (to - from);
    auto add = [&] {
      float w[each];
#pragma unroll
      for (int g = 0; g < each; g++) w[g] = weights[g * RUN];
      add_slot<type, each>(o, values, w);
      weights++, values += row_bytes;
    };
    for (; weights < last && (from & 3) != 0; from++) add();
    for (; weights + 16 <= last; weights += 16, values += 16 * row_bytes) add_quads<type, each, 16>(o, values, row_bytes, weights);
    for (; weights + 4 <= last; weights += 4, values += 4 * row_bytes) add_quads<type, each, 4>(o, values, row_bytes, weights);
    while (weights < last) add();
  }

  states += (((uint64_t)task.row * heads + task.first_head) * gridDim.x + task.run) * state_floats(dim);
  uint64_t next = (uint64_t)gridDim.x * state_floats(dim); // from a head to the next
  if (works) {
#pragma unroll
    for (int g = 0; g < each; g++)
#pragma unroll
      for (int i = 0; i < each; i++)
        if (first + g < task.mine) states[(first + g) * next + column * each + i] = o[g][i];
  }
  if (sums && of < task.mine) {
    states[of * next + dim + lane] = sum;
    if (lane == 0) states[of * next + dim + 16] = ((float *)tops.largest)[last_block * QUERIES + of];
  }
}

#define PARTS 4

// attend_part is attend of a quarter of the columns of the output (blockIdx.y % PARTS), with few rows: attend_scores has
// computed the scores (given, ld apart). The chain of additions over the slots takes the time, so threads 0 to 127 do
// nothing else, and the threads from 128 on copy values to shared memory: for heads of up to 128 elements a thread has a column of a query. With
// last, there is one run, and each part is 32 columns: the output is then complete. 256 threads.
template <int type> DEVICE void attend_part(const Row *rows, const uint32_t *tables, uint8_t *arena, uint32_t heads, uint32_t kvheads, uint32_t dim, uint32_t index, int window, float *states, const float *given, uint32_t ld, Output output, bool last) {
  constexpr uint32_t STAGES = 6, STAGE_BYTES = 4096, COPIES = STAGE_BYTES / 16 / 128;
  SHARED uint4 stages[STAGES * STAGE_BYTES / 16];
  SHARED float4 probabilities[QUERIES * RUN / 4]; // (queries, RUN), scores at first
  SHARED float4 block_tops[RUN / SLOTS];
  SHARED Tops tops;
  SHARED float inverse[QUERIES];
  SHARED const uint8_t *blocks[RUN / SLOTS];
  uint32_t t = threadIdx.x, part = blockIdx.y % PARTS;
  Task task = Task::in(blockIdx.y / PARTS, heads, kvheads);
  float *p = (float *)probabilities;

  // All loads of scores come first. Those of unseen slots are not used.
  given += ((uint64_t)task.row * heads + task.first_head) * ld + task.run * RUN;
  float s[RUN / 256][QUERIES];
#pragma unroll
  for (uint32_t i = 0; i < RUN / 256; i++)
#pragma unroll
    for (uint32_t g = 0; g < QUERIES; g++) s[i][g] = task.run * RUN + t + i * 256 < ld && g < task.mine ? given[g * ld + t + i * 256] : 0;

  Row r = rows[task.row];
  if (!task.see(r.slot, window)) return;
  uint32_t count = task.count, low = task.low, first_block = low / SLOTS, last_block = (count - 1) / SLOTS;
  Cache<type> cache(tables, arena, r, index * kvheads + task.kv, dim);
  cache.table += task.run * (RUN / SLOTS);
  uint32_t width = dim / PARTS, row_bytes = width * bytes_of<type>; // this block's columns
  uint32_t slots = stage_slots(row_bytes, STAGE_BYTES), size = slots * row_bytes, shift = 0; // a block is 1<<shift stages
  while (slots << shift < SLOTS) shift++;
  uint32_t stage = low / slots, last_stage = (count - 1) / slots;
  if (t >= first_block && t <= last_block) blocks[t] = cache.block(t);

  uint32_t from[COPIES], to = (t - 128) * 16; // of this thread's copies within a stage
#pragma unroll
  for (uint32_t i = 0; i < COPIES; i++) {
    uint32_t at = to + i * 128 * 16;
    from[i] = cache.values_at() + part * row_bytes + at / row_bytes * (PARTS * row_bytes) + at % row_bytes;
  }
  auto fetch = [&](uint32_t s, const uint8_t *block) {
    if (t >= 128 && s <= last_stage) {
#pragma unroll
      for (uint32_t i = 0; i < COPIES; i++)
        if (to + i * 128 * 16 < size)
          copy16((uint8_t *)stages + s % STAGES * STAGE_BYTES + to + i * 128 * 16, block + from[i] + (s & ((1u << shift) - 1)) * (PARTS * size));
    }
    end_copies();
  };
#pragma unroll
  for (uint32_t i = 0; i < STAGES - 1; i++) fetch(stage + i, t >= 128 && stage + i <= last_stage ? cache.block((stage + i) >> shift) : nullptr);

#pragma unroll
  for (uint32_t i = 0; i < RUN / 256; i++)
#pragma unroll
    for (uint32_t g = 0; g < QUERIES; g++) p[g * RUN + t + i * 256] = s[i][g];
  wait_block();
  { // the largest score of each block: 4 threads a block and query, with every fourth four of slots
    uint32_t b = t / 16, g = t / 4 % 4;
    float top = as_float(0xff800000);
#pragma unroll
    for (uint32_t i = 0; i < SLOTS / 16; i++) {
      uint32_t slot = b * SLOTS + (i + g) % 4 * 16 + t % 4 * 4; // g spreads the threads over the banks
      float4 x = *(const float4 *)(p + g * RUN + slot);
      top = fmaxf(top, task.sees(slot) ? x.x : top), top = fmaxf(top, task.sees(slot + 1) ? x.y : top);
      top = fmaxf(top, task.sees(slot + 2) ? x.z : top), top = fmaxf(top, task.sees(slot + 3) ? x.w : top);
    }
    top = fmaxf(top, from_lane_xor(top, 1)), top = fmaxf(top, from_lane_xor(top, 2));
    if (t % 4 == 0) ((float *)block_tops)[b * QUERIES + g] = top;
  }
  wait_block();
  if (t < QUERIES * RUN / SLOTS) tops.follow<1>(block_tops, first_block, last_block);
  wait_block();
  tops.weigh(p, low, count);
  wait_block();

  // Sums: thread 192+i has lane i%16 of query i/16.
  float sum = 0;
  uint32_t of = (t - 192) / 16, lane = t % 16;
  bool sums = t >= 192 && (part == 0 || last);
  if constexpr (type == INT8) { // then the probabilities of values are scaled
    if (sums)
      for (uint32_t b = first_block; b <= last_block; b++) sum = tops.add_block(sum, p, b, of, lane);
    wait_block();
    tops.scale(p, cache, low, count);
  }

  uint32_t column = t % width, query = t / width;
  bool works = query < QUERIES;
  float o = 0;
  for (; stage <= last_stage; stage++) {
    wait_copies<STAGES - 2>();
    wait_block();
    fetch(stage + STAGES - 1, stage + STAGES - 1 <= last_stage ? blocks[(stage + STAGES - 1) >> shift] : nullptr);
    uint32_t base = stage * slots, b = base / SLOTS, begin = base > low ? base : low, end = base + slots < count ? base + slots : count;
    bool begins = base % SLOTS == 0 || stage == low / slots; // a block
    if (type != INT8 && begins && sums) sum = tops.add_block(sum, p, b, of, lane);
    if (!works) continue;
    if (begins) o = mul_(o, ((float *)tops.correct)[b * QUERIES + query]);
    const uint8_t *values = (const uint8_t *)stages + stage % STAGES * STAGE_BYTES + (begin - base) * row_bytes + column * bytes_of<type>;
    const float *weights = p + query * RUN + begin, *stop = p + query * RUN + end;
    auto add = [&] {
      float v;
      value<type, 1>(&v, values);
      o = fma_(*weights, v, o);
      weights++, values += row_bytes;
    };
    for (; weights < stop && (begin & 3) != 0; begin++) add();
    if (weights + SLOTS <= stop && width == 32) { // a whole block of a head of 128 elements
      constexpr uint32_t bytes = 32 * bytes_of<type>;
#pragma unroll
      for (int i = 0; i < SLOTS; i += 32) o = add_column<type, 32>(o, values + i * bytes, bytes, weights + i);
      continue;
    }
    for (; weights + 16 <= stop; weights += 16, values += 16 * row_bytes) o = add_column<type, 16>(o, values, row_bytes, weights);
    while (weights < stop) add();
  }

  if (last) {
    if (sums) {
      float x = output.inverse(sum, task.first_head + (of < task.mine ? of : 0), ((float *)tops.largest)[last_block * QUERIES + of]);
      if (lane == 0) inverse[of] = x;
    }
    wait_block();
    if (query < task.mine) output.store(task.row, heads, dim, task.first_head + query, part * width + column, mul_(o, inverse[query])); // whole warps
    return;
  }
  states += (((uint64_t)task.row * heads + task.first_head) * gridDim.x + task.run) * state_floats(dim);
  uint64_t next = (uint64_t)gridDim.x * state_floats(dim); // from a head to the next
  if (query < task.mine) states[query * next + part * width + column] = o;
  if (sums && of < task.mine) {
    states[of * next + dim + lane] = sum;
    if (lane == 0) states[of * next + dim + 16] = ((float *)tops.largest)[last_block * QUERIES + of];
  }
}

#define ATTEND(name, type) \
  KERNEL THREADS(256, 2) attend_##name(CACHED_PARAMETERS, float *states) { \
    attend<type>(q, ldq, rows, tables, arena, heads, kvheads, dim, index, {scale, cap}, window, states); \
  } \
  KERNEL THREADS(256, 2) attend_##name##_4(CACHED_PARAMETERS, float *states, const float *given, uint32_t ld, OUTPUT_PARAMETERS, uint32_t last) { \
    attend_part<type>(rows, tables, arena, heads, kvheads, dim, index, window, states, given, ld, OUTPUT, last != 0); \
  }
ATTEND(f32, F32)
ATTEND(bf16, BF16)
ATTEND(int8, INT8)
#undef ATTEND

#define FOLD_RUNS 256 // whose factors are in shared memory at once

// attend_fold joins the runs of a head (blockIdx.x) and a row, divides by the sum with the sink, and
// writes the output.
// Threads 0 to 255 have a column each, a warp more has the sums.
KERNEL THREADS(288, 2) attend_fold(const float *states, const Row *rows, uint32_t runs, uint32_t heads, uint32_t dim, int window, OUTPUT_PARAMETERS) {
  SHARED float largest[FOLD_RUNS + 1], old[FOLD_RUNS], fresh[FOLD_RUNS]; // largest[0] is before the first
  SHARED float inverse;
  uint32_t t = threadIdx.x, head = blockIdx.x, row = blockIdx.y, slot = rows[row].slot;
  uint32_t first = window_start(slot, window) / RUN, end = slot / RUN + 1, size = state_floats(dim);
  states += (uint64_t)(row * heads + head) * runs * size;
  bool column = t < dim, lanes = t >= 256;
  const float *mine = states + (lanes ? dim + t % 16 : column ? t : 0);
  float o = mine[first * size], top = states[first * size + dim + 16];
  for (uint32_t base = first + 1; base < end; base += FOLD_RUNS) {
    uint32_t n = end - base < FOLD_RUNS ? end - base : FOLD_RUNS;
    wait_block();
    if (t == 0) largest[0] = top;
    for (uint32_t i = t; i < n; i += 288) largest[i + 1] = states[(base + i) * size + dim + 16];
    wait_block();
    for (uint32_t i = t; i < n; i += 288) {
      float before = largest[0];
      for (uint32_t j = 1; j <= i; j++) before = fmaxf(before, largest[j]);
      float m = fmaxf(before, largest[i + 1]);
      old[i] = exp_(sub_(before, m)), fresh[i] = exp_(sub_(largest[i + 1], m));
    }
    for (uint32_t i = 0; i <= n; i++) top = fmaxf(top, largest[i]);
    wait_block();
    for (uint32_t i = 0; i < n; i += 8) {
      float v[8];
#pragma unroll
      for (uint32_t j = 0; j < 8; j++) v[j] = mine[(base + (i + j < n ? i + j : n - 1)) * size];
#pragma unroll
      for (uint32_t j = 0; j < 8; j++)
        if (i + j < n) o = add_(mul_(o, old[i + j]), mul_(v[j], fresh[i + j]));
    }
  }
  if (lanes) {
    float x = OUTPUT.inverse(o, head, top);
    if (t == 256) inverse = x;
  }
  wait_block();
  OUTPUT.store(row, heads, dim, head, t, mul_(o, inverse));
}
