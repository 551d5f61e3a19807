// Attention of a prompt: successive tokens of one sequence, of which each sees the slots up to its own.
// A thread block computes up to PROMPT_ROWS rows, (token, head), of a KV head.
#define PROMPT_ROWS 32
#define PROMPT_BYTES 16384 // of keys or values in shared memory

// prompt_rows is the rows of a thread block, for heads of dim elements: launch.promptRows.
DEVICE uint32_t prompt_rows(uint32_t dim) { return dim > 128 ? PROMPT_ROWS / 2 : PROMPT_ROWS; }

// Softmax is the state of a row: its largest score, one lane of its sum, and whether it saw a slot.
struct Softmax {
  float top, sum;
  bool some;
};

// How a row's run is joined with the runs before it.
enum { SKIP, COPY, JOIN };

// copy_stage copies keys or values to shared memory: all loads come before the first store.
DEVICE void copy_stage(uint4 *to, const uint8_t *from, uint32_t bytes) {
  uint4 v[PROMPT_BYTES / 16 / 256];
#pragma unroll
  for (uint32_t i = 0; i < PROMPT_BYTES / 16 / 256; i++)
    if ((i * 256 + threadIdx.x) * 16 < bytes) v[i] = ((const uint4 *)from)[i * 256 + threadIdx.x];
#pragma unroll
  for (uint32_t i = 0; i < PROMPT_BYTES / 16 / 256; i++)
    if ((i * 256 + threadIdx.x) * 16 < bytes) to[i * 256 + threadIdx.x] = v[i];
}

// score_rows computes the scores of `count` rows of queries with the key of a slot.
template <int type, int count> DEVICE void score_rows(float *scores, const float *queries, const uint8_t *key, uint32_t dim, Score score, float by) {
  float s[count] = {};
#pragma unroll 1
  for (uint32_t k = 0; k < dim; k += 4, key += 2 * key_step<type>, queries += 4) {
    float a[2], b[2];
    key_pair<type>(a, key), key_pair<type>(b, key + key_step<type>);
#pragma unroll
    for (int i = 0; i < count; i++) {
      float4 x = *(const float4 *)(queries + i * dim);
      s[i] = fma_(b[1], x.w, fma_(b[0], x.z, fma_(a[1], x.y, fma_(a[0], x.x, s[i]))));
    }
  }
#pragma unroll
  for (int i = 0; i < count; i++) scores[i * SLOTS] = score.of(type == INT8 ? mul_(s[i], by) : s[i]);
}

template <int type> DEVICE void attend_prompt(const float *q, uint32_t ldq, const Row *rows, const uint32_t *tables, uint8_t *arena, uint32_t heads, uint32_t kvheads, uint32_t dim, uint32_t index, Score score, int window, const float *sinks, float *out, uint32_t ld, uint32_t n) {
  SHARED float4 queries[1024]; // (rows, dim)
  SHARED uint4 stage[PROMPT_BYTES / 16];
  SHARED float4 scores[PROMPT_ROWS * SLOTS / 4]; // (rows, SLOTS), then probabilities
  SHARED float correct[PROMPT_ROWS], old[PROMPT_ROWS], fresh[PROMPT_ROWS];
  SHARED uint32_t low[PROMPT_ROWS], high[PROMPT_ROWS]; // slots that a row sees: [low, high)
  SHARED uint8_t how[PROMPT_ROWS];
  uint32_t t = threadIdx.x, group = heads / kvheads, most = prompt_rows(dim);
  uint32_t chunks = (group + most - 1) / most, chunk = blockIdx.y % chunks, kv = blockIdx.y / chunks;
  uint32_t width = group - chunk * most < most ? group - chunk * most : most; // heads
  uint32_t together = most / group > 1 ? most / group : 1, token = blockIdx.x * together;
  uint32_t tokens = n - token < together ? n - token : together, used = tokens * width;
  uint32_t first_head = kv * group + chunk * most;
  Row r = rows[token];
  Cache<type> cache(tables, arena, r, index * kvheads + kv, dim);

  if (t < PROMPT_ROWS) {
    uint32_t slot = r.slot + t / width;
    low[t] = t < used ? window_start(slot, window) : 0, high[t] = t < used ? slot + 1 : ~0u; // unused rows see all
  }
  for (uint32_t i = t; i < most * dim; i += 256) {
    uint32_t of = i / dim;
    ((float *)queries)[i] = of < used ? q[(uint64_t)(token + of / width) * ldq + (first_head + of % width) * dim + i % dim] : 0;
  }
  wait_block();

  // This thread's rows of the softmax: t/16 and t/16+16. Its tile of the output: 4 rows, 4 columns.
  uint32_t lane = t % 16;
  const Softmax none = {as_float(0xff800000), 0, false};
  Softmax run[2] = {none, none}, before[2] = {none, none};
  uint32_t quads = dim / 4, column = t % quads * 4, top_row = t / quads * 4;
  bool works = top_row < most;
  float o[4][4] = {}, o_before[4][4] = {};
  float *p = (float *)scores;

  // join folds the run into the runs before it, and starts another.
  auto join = [&] {
#pragma unroll
    for (int i = 0; i < 2; i++) {
      uint32_t row = t / 16 + 16 * i;
      float m = fmaxf(before[i].top, run[i].top), x = exp_(sub_(before[i].top, m)), y = exp_(sub_(run[i].top, m));
      uint8_t action = !run[i].some ? SKIP : !before[i].some ? COPY : JOIN;
      if (action == COPY) before[i] = run[i];
      if (action == JOIN) before[i].sum = add_(mul_(before[i].sum, x), mul_(run[i].sum, y)), before[i].top = m;
      run[i] = none;
      if (lane == 0) old[row] = x, fresh[row] = y, how[row] = action;
    }
    wait_block();
    if (works) {
#pragma unroll
      for (int i = 0; i < 4; i++) {
        uint32_t row = top_row + i;
#pragma unroll
        for (int j = 0; j < 4; j++) {
          if (how[row] == COPY) o_before[i][j] = o[i][j];
          if (how[row] == JOIN) o_before[i][j] = add_(mul_(o_before[i][j], old[row]), mul_(o[i][j], fresh[row]));
          o[i][j] = 0;
        }
      }
    }
  };

  uint32_t row_bytes = dim * bytes_of<type>, slots = stage_slots(row_bytes, PROMPT_BYTES), size = slots * row_bytes;
  uint32_t first_block = low[0] / SLOTS, last_block = (r.slot + tokens - 1) / SLOTS;
#pragma unroll 1
  for (uint32_t b = first_block;; b++) {
    if (b > first_block && (b > last_block || b % (RUN / SLOTS) == 0)) join();
    if (b > last_block) break;
    const uint8_t *block = cache.block(b);
    uint32_t base = b * SLOTS;
    // Scores of all slots, also of those that are not seen.
    for (uint32_t s = 0; s < SLOTS; s += slots) {
      wait_block();
      copy_stage(stage, block + s * row_bytes, size);
      wait_block();
      uint32_t slot = t % slots, each = most * slots / 256, first = t / slots * each, at = cache.key(slot, 0);
      float by = 1;
      if constexpr (type == INT8) by = ((const float *)(block + cache.scales_at()))[s + slot];
      float *to = p + first * SLOTS + s + slot;
      const float *from = (const float *)queries + first * dim;
      const uint8_t *key = (const uint8_t *)stage + at * bytes_of<type>;
      // Heads of up to 128 elements have 8 rows a thread, or 4 where a stage is half a block.
      if (each == 8) score_rows<type, 8>(to, from, key, dim, score, by);
      else if (type != BF16 && each == 4) score_rows<type, 4>(to, from, key, dim, score, by);
      else
        for (uint32_t i = 0; i < each; i++) score_rows<type, 1>(to + i * SLOTS, from + i * dim, key, dim, score, by);
    }
    wait_block();
    // Softmax.
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
      uint32_t row = t / 16 + 16 * i;
      if (16 * i >= most) break;
      float s[4], m = as_float(0xff800000);
      bool seen[4];
#pragma unroll
      for (int j = 0; j < 4; j++) {
        uint32_t slot = base + j * 16 + lane;
        seen[j] = slot >= low[row] && slot < high[row];
        s[j] = p[row * SLOTS + j * 16 + lane];
        if (seen[j]) m = fmaxf(m, s[j]);
      }
      for (int x = 8; x; x >>= 1) m = fmaxf(m, from_lane_xor(m, x));
      bool some = base < high[row] && base + SLOTS > low[row];
      m = fmaxf(m, run[i].top);
      float c = some ? exp_(sub_(run[i].top, m)) : 1;
      if (some) {
        run[i].sum = mul_(run[i].sum, c), run[i].top = m, run[i].some = true;
#pragma unroll
        for (int j = 0; j < 4; j++) {
          float v = seen[j] ? exp_(sub_(s[j], m)) : 0;
          run[i].sum = add_(run[i].sum, v);
          if constexpr (type == INT8) v = mul_(v, ((const float *)(block + cache.scales_at()))[SLOTS + j * 16 + lane]);
          p[row * SLOTS + j * 16 + lane] = v;
        }
      }
      if (lane == 0) correct[row] = c;
    }
    // Values.
    for (uint32_t s = 0; s < SLOTS; s += slots) {
      wait_block();
      copy_stage(stage, block + cache.values_at() + s * row_bytes, size);
      wait_block();
      if (!works) continue;
      uint32_t from[4], to[4], all_from = 0, all_to = slots; // slots of the stage that each row, and that all rows see
#pragma unroll
      for (int i = 0; i < 4; i++) {
        uint32_t row = top_row + i, at = base + s;
        if (s == 0) {
          float c = correct[row];
#pragma unroll
          for (int j = 0; j < 4; j++) o[i][j] = mul_(o[i][j], c);
        }
        from[i] = low[row] > at ? low[row] - at : 0;
        to[i] = high[row] > at ? high[row] - at : 0;
        all_from = all_from > from[i] ? all_from : from[i];
        all_to = all_to < to[i] ? all_to : to[i];
      }
      const uint8_t *values = (const uint8_t *)stage + column * bytes_of<type>;
      const float *weights = p + top_row * SLOTS + s;
      if (all_from == 0 && all_to == slots) {
#pragma unroll 2
        for (uint32_t slot = 0; slot < slots; slot += 4, weights += 4) {
          float4 w[4];
#pragma unroll
          for (int i = 0; i < 4; i++) w[i] = *(const float4 *)(weights + i * SLOTS);
#pragma unroll
          for (int k = 0; k < 4; k++, values += row_bytes) {
            float v[4];
            value<type, 4>(v, values);
#pragma unroll
            for (int i = 0; i < 4; i++) {
              float x = k == 0 ? w[i].x : k == 1 ? w[i].y : k == 2 ? w[i].z : w[i].w;
#pragma unroll
              for (int j = 0; j < 4; j++) o[i][j] = fma_(x, v[j], o[i][j]);
            }
          }
        }
      } else {
#pragma unroll 1
        for (uint32_t slot = 0; slot < slots; slot++, values += row_bytes) {
          float v[4];
          value<type, 4>(v, values);
#pragma unroll
          for (int i = 0; i < 4; i++) {
            if (slot < from[i] || slot >= to[i]) continue;
#pragma unroll
            for (int j = 0; j < 4; j++) o[i][j] = fma_(weights[i * SLOTS + slot], v[j], o[i][j]);
          }
        }
      }
    }
  }
#pragma unroll
  for (int i = 0; i < 2; i++) {
    uint32_t row = t / 16 + 16 * i;
    float sum = before[i].sum;
    for (int m = 8; m; m >>= 1) sum = add_(sum, from_lane_xor(sum, m));
    if (sinks && row < used) sum = add_(sum, exp_(sub_(sinks[first_head + row % width], before[i].top)));
    if (lane == 0) correct[row] = div_(1.f, sum);
  }
  wait_block();
  if (!works) return;
#pragma unroll
  for (int i = 0; i < 4; i++) {
    uint32_t row = top_row + i;
    if (row >= used) continue;
    float *to = out + (uint64_t)(token + row / width) * ld + (first_head + row % width) * dim + column;
#pragma unroll
    for (int j = 0; j < 4; j++) to[j] = mul_(o_before[i][j], correct[row]);
  }
}

#define ATTEND_PROMPT(name, type) \
  KERNEL THREADS(256, 2) name(const float *q, uint32_t ldq, const Row *rows, const uint32_t *tables, uint8_t *arena, uint32_t heads, uint32_t kvheads, uint32_t dim, uint32_t index, float scale, float cap, int window, const float *sinks, float *out, uint32_t ld, uint32_t n) { \
    attend_prompt<type>(q, ldq, rows, tables, arena, heads, kvheads, dim, index, {scale, cap}, window, sinks, out, ld, n); \
  }
ATTEND_PROMPT(attend_prompt_f32, F32)
ATTEND_PROMPT(attend_prompt_bf16, BF16)
ATTEND_PROMPT(attend_prompt_int8, INT8)
#undef ATTEND_PROMPT
