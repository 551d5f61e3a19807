// The attention that slots receive, as tensor.AttentionMass: each slot has one chain of additions over
// tokens and heads. The softmax of a row (token, head) is one chain over blocks of slots, without runs.

// key_scores computes the scores of a slot of a block with `count` queries in shared memory, (dim, count).
template <int type, int count> DEVICE void key_scores(float *s, const Cache<type> &cache, const uint8_t *block, uint32_t slot, const float *queries, Score score) {
  const uint8_t *key = block + cache.key(slot, 0) * bytes_of<type>;
#pragma unroll
  for (int i = 0; i < count; i++) s[i] = 0;
#pragma unroll 1
  for (uint32_t k = 0; k < cache.dim; k += 2, key += key_step<type>, queries += 2 * count) {
    float v[2];
    key_pair<type>(v, key);
#pragma unroll
    for (int i = 0; i < count; i++) s[i] = fma_(v[1], queries[count + i], fma_(v[0], queries[i], s[i]));
  }
  float by = 1;
  if constexpr (type == INT8) by = ((const float *)(block + cache.scales_at()))[slot];
#pragma unroll
  for (int i = 0; i < count; i++) s[i] = score.of(type == INT8 ? mul_(s[i], by) : s[i]);
}

// mass_sums computes, for a row (blockIdx.y) and a head, the largest score and the inverse of the sum of the
// softmax: shares[(row, head), 2]. 64 threads: one a slot of a block.
template <int type> DEVICE void mass_sums(const float *q, uint32_t ldq, const Row *rows, const uint32_t *tables, uint8_t *arena, uint32_t heads, uint32_t kvheads, uint32_t dim, uint32_t index, Score score, float *shares) {
  SHARED float query[MAX_HEAD], p[SLOTS], tops[2];
  uint32_t t = threadIdx.x, head = blockIdx.x, row = blockIdx.y;
  Row r = rows[row];
  Cache<type> cache(tables, arena, r, index * kvheads + head / (heads / kvheads), dim);
  q += (uint64_t)row * ldq + head * dim;
  for (uint32_t i = t; i < dim; i += SLOTS) query[i] = q[i];
  float top = as_float(0xff800000), sum = 0;
  for (uint32_t b = 0; b * SLOTS <= r.slot; b++) {
    wait_block();
    bool seen = b * SLOTS + t <= r.slot;
    float s = 0, m = as_float(0xff800000);
    if (seen) {
      key_scores<type, 1>(&s, cache, cache.block(b), t, query, score);
      m = fmaxf(s, m); // without NaN
    }
    for (int k = 16; k; k >>= 1) m = fmaxf(m, from_lane_xor(m, k));
    if (t % 32 == 0) tops[t / 32] = m;
    wait_block();
    float before = top;
    top = fmaxf(top, fmaxf(tops[0], tops[1]));
    p[t] = seen ? exp_(sub_(s, top)) : 0;
    wait_block();
    if (t < 16) {
      sum = mul_(sum, exp_(sub_(before, top)));
      for (int j = 0; j < 4; j++) sum = add_(sum, p[j * 16 + t]);
    }
  }
  for (int k = 8; k; k >>= 1) sum = add_(sum, from_lane_xor(sum, k));
  if (t == 0) {
    shares += 2 * ((uint64_t)row * heads + head);
    shares[0] = top, shares[1] = div_(1.f, sum);
  }
}

#define TOGETHER 8 // rows (token, head) whose scores share the reads of a key

// mass_add adds the shares of n rows to the mass of the slots of a block (blockIdx.x) and a KV head:
// mass[(KV head), slot], ld apart. With `apart`, each row has its own mass, which begins at 0: the row is
// blockIdx.y / kvheads. Otherwise the rows are successive tokens of one sequence. 64 threads: one a slot.
template <int type> DEVICE void mass_add(const float *q, uint32_t ldq, const Row *rows, const uint32_t *tables, uint8_t *arena, uint32_t heads, uint32_t kvheads, uint32_t dim, uint32_t index, Score score, const float *shares, float *mass, uint32_t ld, uint32_t n, uint32_t apart) {
  SHARED float queries[MAX_HEAD * TOGETHER]; // (dim, TOGETHER)
  uint32_t t = threadIdx.x, group = heads / kvheads, kv = blockIdx.y % kvheads, slot = blockIdx.x * SLOTS + t;
  uint32_t first = blockIdx.y / kvheads, count = apart ? 1 : n, last = rows[first + count - 1].slot;
  if (blockIdx.x * SLOTS > last) return;
  Cache<type> cache(tables, arena, rows[first], index * kvheads + kv, dim);
  const uint8_t *block = cache.block(blockIdx.x);
  mass += ((uint64_t)first * kvheads + kv) * ld + slot;
  float sum = apart || slot > last ? 0 : *mass;
  for (uint32_t base = 0; base < count * group; base += TOGETHER) {
    wait_block();
    for (uint32_t i = t; i < TOGETHER * dim; i += SLOTS) {
      uint32_t of = base + i / dim, k = i % dim;
      queries[k * TOGETHER + i / dim] = of < count * group ? q[(uint64_t)(first + of / group) * ldq + (kv * group + of % group) * dim + k] : 0;
    }
    wait_block();
    if (slot > last) continue;
    float s[TOGETHER];
    key_scores<type, TOGETHER>(s, cache, block, t, queries, score);
    for (uint32_t i = 0; i < TOGETHER && base + i < count * group; i++) {
      uint32_t row = first + (base + i) / group;
      if (slot > rows[row].slot) continue;
      const float *share = shares + 2 * ((uint64_t)row * heads + kv * group + (base + i) % group);
      sum = add_(sum, mul_(exp_(sub_(s[i], share[0])), share[1]));
    }
  }
  if (slot <= last) *mass = sum;
}

#define MASS_PARAMETERS const float *q, uint32_t ldq, const Row *rows, const uint32_t *tables, uint8_t *arena, uint32_t heads, uint32_t kvheads, uint32_t dim, uint32_t index, float scale, float cap
#define MASS(name, type) \
  KERNEL THREADS(64, 8) mass_sums_##name(MASS_PARAMETERS, float *shares) { \
    mass_sums<type>(q, ldq, rows, tables, arena, heads, kvheads, dim, index, {scale, cap}, shares); \
  } \
  KERNEL THREADS(64, 8) mass_add_##name(MASS_PARAMETERS, const float *shares, float *mass, uint32_t ld, uint32_t n, uint32_t apart) { \
    mass_add<type>(q, ldq, rows, tables, arena, heads, kvheads, dim, index, {scale, cap}, shares, mass, ld, n, apart); \
  }
MASS(f32, F32)
MASS(bf16, BF16)
MASS(int8, INT8)
#undef MASS
