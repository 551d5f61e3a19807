// Attention of a prompt: successive tokens of one sequence, of which each sees the slots up to its own.
// A thread block computes some rows, (token, head), of a KV head. Shared memory delivers 32 words per clock
// to a multiprocessor with 128 lanes. So a thread computes a tile of several rows and slots, or rows and columns, and
// uses each word that it reads several times.
#define PROMPT_THREADS 128

constexpr uint32_t scores_ld = SLOTS + 4; // so that 8 rows lie in different banks

// PromptTile is the shape of a thread block: up to `most` rows, and bytes of keys or values that are copied at once. A
// block of 64 rows needs dynamic shared memory.
template <int most, int bytes> struct PromptTile {
  static constexpr int rows = most, piece = bytes;
  static constexpr bool dynamic = rows > 32;
  static constexpr int scored = rows * SLOTS / 4 / PROMPT_THREADS; // rows of a thread, of 4 slots each
  static constexpr int soft = rows * PANEL / PROMPT_THREADS;       // rows of a thread, of every 16th slot
  static constexpr int wide = 8;                                   // columns of a thread
  static constexpr int tall = rows * 128 / wide / PROMPT_THREADS;  // rows of a thread, of these columns

  float4 queries[rows * (128 + 4) / 4]; // (rows, dim + 4): 8 rows lie in different banks
  uint4 pieces[2 * piece / 16];
  float4 scores[rows * scores_ld / 4]; // (rows, scores_ld), then probabilities
  float correct[rows], old[rows], fresh[rows];
  uint32_t low[rows], high[rows]; // slots that a row sees: [low, high)
  uint8_t how[rows];

  // fits is the rows of a thread block, for heads of dim elements: launch.promptRows.
  DEVICE_METHOD static uint32_t fits(uint32_t dim) { return dim > 128 ? rows / 2 : rows; }
};
typedef PromptTile<32, 8192> Tile32;
typedef PromptTile<64, 16384> Tile64;
static_assert(sizeof(Tile64) == 85312, "launch.promptBytes");

template <class Tile, int type> constexpr uint32_t piece_elements = Tile::piece / SLOTS / bytes_of<type>; // of all keys of a block

// Softmax is the state of a row: its largest score, one lane of its sum, and whether it saw a slot.
struct Softmax {
  float top, sum;
  bool some;
};

// How a row's run is joined with the runs before it.
enum { SKIP, COPY, JOIN };

// key_quads reads two elements of the keys of 4 slots, the first of them even.
template <int type> DEVICE void key_quads(float (*to)[4], const uint8_t *key) {
  if constexpr (type == BF16) {
    uint4 v = *(const uint4 *)key;
    uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; i++) to[0][i] = as_float(words[i] << 16), to[1][i] = as_float(words[i] & 0xffff0000);
  } else {
#pragma unroll
    for (int k = 0; k < 2; k++, key += key_step<type> / 2) {
      if constexpr (type == F32) {
        float4 v = *(const float4 *)key;
        to[k][0] = v.x, to[k][1] = v.y, to[k][2] = v.z, to[k][3] = v.w;
      } else {
        uint32_t v = *(const uint32_t *)key;
#pragma unroll
        for (int i = 0; i < 4; i++) to[k][i] = from_int((int8_t)(v >> 8 * i));
      }
    }
  }
}

// score_quads adds n elements to the products of `count` rows of queries, 8 rows apart, with the keys of 4 slots.
template <int type, int count> DEVICE void score_quads(float (*s)[4], const float *queries, uint32_t ld, const uint8_t *key, uint32_t n) {
#pragma unroll 2
  for (uint32_t k = 0; k < n; k += 4, key += 2 * key_step<type>, queries += 4) {
    float v[4][4];
    key_quads<type>(v, key), key_quads<type>(v + 2, key + key_step<type>);
#pragma unroll
    for (int i = 0; i < count; i++) {
      float4 x = *(const float4 *)(queries + i * 8 * ld);
#pragma unroll
      for (int j = 0; j < 4; j++) s[i][j] = fma_(v[3][j], x.w, fma_(v[2][j], x.z, fma_(v[1][j], x.y, fma_(v[0][j], x.x, s[i][j]))));
    }
  }
}

// wide_value reads 8 elements of a value. The address is a multiple of the size of 8 elements, or of 16.
template <int type> DEVICE void wide_value(float *to, const uint8_t *from) {
  if constexpr (type == F32) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
      float4 v = ((const float4 *)from)[i];
      to[4 * i] = v.x, to[4 * i + 1] = v.y, to[4 * i + 2] = v.z, to[4 * i + 3] = v.w;
    }
  } else if constexpr (type == BF16) {
    uint4 v = *(const uint4 *)from;
    uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; i++) to[2 * i] = as_float(words[i] << 16), to[2 * i + 1] = as_float(words[i] & 0xffff0000);
  } else {
    uint2 v = *(const uint2 *)from;
#pragma unroll
    for (int i = 0; i < 4; i++) to[i] = from_int((int8_t)(v.x >> 8 * i)), to[4 + i] = from_int((int8_t)(v.y >> 8 * i));
  }
}

template <class Tile, int type> DEVICE void attend_prompt(const float *q, uint32_t ldq, const Row *rows, const uint32_t *tables, uint8_t *arena, uint32_t heads, uint32_t kvheads, uint32_t dim, uint32_t index, Score score, int window, const float *sinks, float *out, uint32_t ld, uint32_t n) {
  constexpr int wide = Tile::wide, tall = Tile::tall, soft_rows = Tile::soft, scored_rows = Tile::scored;
  Tile *shared;
  if constexpr (Tile::dynamic) shared = (Tile *)dynamic_shared();
  else {
    SHARED Tile memory;
    shared = &memory;
  }
  float4 *queries = shared->queries;
  float *p = (float *)shared->scores, *correct = shared->correct, *old = shared->old, *fresh = shared->fresh;
  uint32_t *low = shared->low, *high = shared->high;
  uint8_t *how = shared->how;
  uint32_t t = threadIdx.x, group = heads / kvheads, most = Tile::fits(dim);
  uint32_t chunks = (group + most - 1) / most, chunk = blockIdx.y % chunks, kv = blockIdx.y / chunks;
  uint32_t width = group - chunk * most < most ? group - chunk * most : most; // heads
  uint32_t together = most / group > 1 ? most / group : 1, token = (gridDim.x - 1 - blockIdx.x) * together; // blocks of the most slots begin first
  uint32_t tokens = n - token < together ? n - token : together, used = tokens * width;
  uint32_t first_head = kv * group + chunk * most;
  Row r = rows[token];
  Cache<type> cache(tables, arena, r, index * kvheads + kv, dim);
  uint32_t first_block = window_start(r.slot, window) / SLOTS, last_block = (r.slot + tokens - 1) / SLOTS;

  // Pieces are parts of the elements of the keys of a block, then parts of the slots of its values, block after block.
  // One is used while the next one comes.
  uint32_t row_bytes = dim * bytes_of<type>, slots = stage_slots(row_bytes, Tile::piece), size = slots * row_bytes;
  uint32_t key_pieces = (dim + piece_elements<Tile, type> - 1) / piece_elements<Tile, type>, of_block = key_pieces + SLOTS / slots;
  uint32_t next_block = first_block, next = 0, place = 0; // place of the next piece
  const uint8_t *next_from = cache.block(first_block);
  auto fetch = [&] {
    if (next_block <= last_block) {
      uint8_t *to = (uint8_t *)shared->pieces + place;
      if (next < key_pieces) {
        constexpr uint32_t full = Tile::piece / (SLOTS / PANEL); // bytes of a panel
        uint32_t left = (dim * PANEL * bytes_of<type>) - next * full, bytes = left < full ? left : full;
        const uint8_t *from = next_from + next * full;
#pragma unroll
        for (uint32_t i = 0; i < Tile::piece / 16 / PROMPT_THREADS; i++) {
          uint32_t at = (i * PROMPT_THREADS + t) * 16;
          if (at % full < bytes) copy16(to + at, from + at / full * (dim * PANEL * bytes_of<type>) + at % full);
        }
      } else {
        const uint8_t *from = next_from + cache.values_at() + (next - key_pieces) * size;
#pragma unroll
        for (uint32_t i = 0; i < Tile::piece / 16 / PROMPT_THREADS; i++) {
          uint32_t at = (i * PROMPT_THREADS + t) * 16;
          if (at < size) copy16(to + at, from + at);
        }
      }
      if (++next == of_block) {
        next = 0, next_block++;
        if (next_block <= last_block) next_from = cache.block(next_block);
      }
    }
    end_copies();
    place ^= Tile::piece;
  };
  // arrived waits for the next piece and starts the copy of the one after it.
  auto arrived = [&] {
    wait_copies<0>();
    wait_block();
    const uint8_t *piece = (const uint8_t *)shared->pieces + (place ^ Tile::piece);
    fetch();
    return piece;
  };
  fetch();

  if (t < Tile::rows) {
    uint32_t slot = r.slot + t / width;
    low[t] = t < used ? window_start(slot, window) : 0, high[t] = t < used ? slot + 1 : ~0u; // unused rows see all
  }
  uint32_t ld_queries = dim + 4;
  for (uint32_t i = t; i < most * dim; i += PROMPT_THREADS) {
    uint32_t of = i / dim, k = i % dim;
    ((float *)queries)[of * ld_queries + k] = of < used ? q[(uint64_t)(token + of / width) * ldq + (first_head + of % width) * dim + k] : 0;
  }

  // This thread's rows of the softmax are soft_row(i). Its tile of the output: `tall` rows, `wide` columns.
  uint32_t lane = t % 16;
  auto soft_row = [&](uint32_t i) { return t / 16 + PROMPT_THREADS / 16 * i; };
  const Softmax none = {as_float(0xff800000), 0, false};
  Softmax run[soft_rows], before[soft_rows];
#pragma unroll
  for (int i = 0; i < soft_rows; i++) run[i] = before[i] = none;
  uint32_t wides = dim / wide, column = t % wides * wide, top_row = t / wides * tall;
  bool works = top_row < most;
  float o[tall][wide] = {};
  // Its tile of the scores: 4 slots, and score_row + 8 * i.
  uint32_t quad = t % 2 + t / 16 % 2 * 2, panel = t / 32 % 4, scored = most == Tile::rows ? scored_rows : scored_rows / 2;
  uint32_t score_row = t / 2 % 8 + t / 128 * 8 * scored;
  const float *query = (const float *)queries + score_row * ld_queries;
  uint32_t key_at = panel * (Tile::piece / (SLOTS / PANEL)) + quad * (type == BF16 ? 16 : 4 * bytes_of<type>);

  // output is where a row's output goes. The runs before this one have theirs there.
  auto output = [&](uint32_t row) { return out + (uint64_t)(token + row / width) * ld + (first_head + row % width) * dim + column; };

  // join folds the run into the runs before it, and starts another.
  auto join = [&] {
#pragma unroll
    for (int i = 0; i < soft_rows; i++) {
      uint32_t row = soft_row(i);
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
      for (int i = 0; i < tall; i++) {
        uint32_t row = top_row + i;
        uint8_t action = row < used ? how[row] : SKIP;
        float *to = output(row), x = old[row], y = fresh[row];
#pragma unroll
        for (int j = 0; j < wide; j++) {
          if (action == COPY) to[j] = o[i][j];
          if (action == JOIN) to[j] = add_(mul_(to[j], x), mul_(o[i][j], y));
          o[i][j] = 0;
        }
      }
    }
  };

#pragma unroll 1
  for (uint32_t b = first_block;; b++) {
    if (b > first_block && (b > last_block || b % (RUN / SLOTS) == 0)) join();
    if (b > last_block) break;
    uint32_t base = b * SLOTS;
    const float *scales = nullptr; // of keys, then of values
    if constexpr (type == INT8) scales = (const float *)(cache.block(b) + cache.scales_at());
    // Scores of all slots, also of those that are not seen.
    float s[scored_rows][4] = {};
#pragma unroll 1
    for (uint32_t k = 0; k < dim; k += piece_elements<Tile, type>) {
      const uint8_t *key = arrived() + key_at;
      uint32_t left = dim - k, elements = left < piece_elements<Tile, type> ? left : piece_elements<Tile, type>;
      if (scored == scored_rows) score_quads<type, scored_rows>(s, query + k, ld_queries, key, elements);
      else score_quads<type, scored_rows / 2>(s, query + k, ld_queries, key, elements);
    }
    float4 by = {1, 1, 1, 1};
    if constexpr (type == INT8) by = ((const float4 *)scales)[panel * (PANEL / 4) + quad];
#pragma unroll
    for (int i = 0; i < scored_rows; i++) {
      if (i == (int)scored) break;
      if constexpr (type == INT8) s[i][0] = mul_(s[i][0], by.x), s[i][1] = mul_(s[i][1], by.y), s[i][2] = mul_(s[i][2], by.z), s[i][3] = mul_(s[i][3], by.w);
      float4 v = {mul_(s[i][0], score.scale), mul_(s[i][1], score.scale), mul_(s[i][2], score.scale), mul_(s[i][3], score.scale)};
      *(float4 *)(p + (score_row + 8 * i) * scores_ld + panel * PANEL + quad * 4) = v;
    }
    if (score.cap != 0) {
#pragma unroll 1
      for (uint32_t i = 0; i < scored; i++) {
        float4 *at = (float4 *)(p + (score_row + 8 * i) * scores_ld + panel * PANEL + quad * 4), v = *at;
        *at = {soft_cap(v.x, score.cap), soft_cap(v.y, score.cap), soft_cap(v.z, score.cap), soft_cap(v.w, score.cap)};
      }
    }
    wait_block();
    // Softmax. It has no branches, so that the exponentials of all rows are computed at once.
    float x[soft_rows][4];
#pragma unroll
    for (uint32_t i = 0; i < soft_rows; i++) {
      uint32_t row = soft_row(i);
      if (PROMPT_THREADS / 16 * i >= most) break;
      float m = as_float(0xff800000);
      bool seen[4], some = base < high[row] && base + SLOTS > low[row];
#pragma unroll
      for (int j = 0; j < 4; j++) {
        uint32_t slot = base + j * 16 + lane;
        seen[j] = slot >= low[row] && slot < high[row];
        x[i][j] = p[row * scores_ld + j * 16 + lane];
        if (seen[j]) m = fmaxf(m, x[i][j]);
      }
      for (int by = 8; by; by >>= 1) m = fmaxf(m, from_lane_xor(m, by));
      m = fmaxf(m, run[i].top);
      float c = exp_(sub_(run[i].top, m));
      keep(c);
      c = some ? c : 1;
      float sum = mul_(run[i].sum, c);
#pragma unroll
      for (int j = 0; j < 4; j++) {
        float v = exp_(sub_(x[i][j], m));
        keep(v);
        x[i][j] = seen[j] ? v : 0;
        sum = add_(sum, x[i][j]);
        if constexpr (type == INT8) x[i][j] = mul_(x[i][j], scales[SLOTS + j * 16 + lane]);
        p[row * scores_ld + j * 16 + lane] = x[i][j];
      }
      run[i].sum = some ? sum : run[i].sum, run[i].top = some ? m : run[i].top, run[i].some |= some;
      if (lane == 0) correct[row] = c;
    }
    // Values.
#pragma unroll 1
    for (uint32_t s = 0; s < SLOTS; s += slots) {
      const uint8_t *values = arrived() + column * bytes_of<type>;
      if (!works) continue;
      uint32_t from[tall], to[tall], some_from = slots, some_to = 0, all_from = 0, all_to = slots; // slots of the piece that each row, some row, and all rows see
#pragma unroll
      for (int i = 0; i < tall; i++) {
        uint32_t row = top_row + i, at = base + s;
        if (s == 0) {
          float c = correct[row];
#pragma unroll
          for (int j = 0; j < wide; j++) o[i][j] = mul_(o[i][j], c);
        }
        from[i] = low[row] > at ? low[row] - at : 0;
        to[i] = high[row] > at ? high[row] - at : 0;
        to[i] = to[i] < slots ? to[i] : slots;
        some_from = some_from < from[i] ? some_from : from[i], some_to = some_to > to[i] ? some_to : to[i];
        all_from = all_from > from[i] ? all_from : from[i], all_to = all_to < to[i] ? all_to : to[i];
      }
      uint32_t slot = some_from, middle = (all_from + 3) / 4 * 4;
      const float *weights = p + top_row * scores_ld + s + slot;
      values += slot * row_bytes;
      // some adds slots up to `end` to the rows that see them.
      auto some = [&](uint32_t end) {
#pragma unroll 1
        for (; slot < end; slot++, weights++, values += row_bytes) {
          float v[wide];
          wide_value<type>(v, values);
#pragma unroll
          for (int i = 0; i < tall; i++) {
            if (slot < from[i] || slot >= to[i]) continue;
#pragma unroll
            for (int j = 0; j < wide; j++) o[i][j] = fma_(weights[i * scores_ld], v[j], o[i][j]);
          }
        }
      };
      some(middle < some_to ? middle : some_to);
#pragma unroll 2
      for (; slot + 4 <= all_to; slot += 4, weights += 4) {
        float4 w[tall];
#pragma unroll
        for (int i = 0; i < tall; i++) w[i] = *(const float4 *)(weights + i * scores_ld);
#pragma unroll
        for (int k = 0; k < 4; k++, values += row_bytes) {
          float v[wide];
          wide_value<type>(v, values);
#pragma unroll
          for (int i = 0; i < tall; i++) {
            float x = k == 0 ? w[i].x : k == 1 ? w[i].y : k == 2 ? w[i].z : w[i].w;
#pragma unroll
            for (int j = 0; j < wide; j++) o[i][j] = fma_(x, v[j], o[i][j]);
          }
        }
      }
      some(some_to);
    }
  }
#pragma unroll
  for (int i = 0; i < soft_rows; i++) {
    uint32_t row = soft_row(i);
    float sum = before[i].sum;
    for (int m = 8; m; m >>= 1) sum = add_(sum, from_lane_xor(sum, m));
    if (sinks && row < used) sum = add_(sum, exp_(sub_(sinks[first_head + row % width], before[i].top)));
    if (lane == 0) correct[row] = div_(1.f, sum);
  }
  wait_block();
  if (!works) return;
#pragma unroll
  for (int i = 0; i < tall; i++) {
    uint32_t row = top_row + i;
    if (row >= used) continue;
    float *to = output(row);
#pragma unroll
    for (int j = 0; j < wide; j++) to[j] = mul_(to[j], correct[row]);
  }
}

#define ATTEND_PROMPT(name, tile, type, blocks_together) \
  KERNEL THREADS(PROMPT_THREADS, blocks_together) name(const float *q, uint32_t ldq, const Row *rows, const uint32_t *tables, uint8_t *arena, uint32_t heads, uint32_t kvheads, uint32_t dim, uint32_t index, float scale, float cap, int window, const float *sinks, float *out, uint32_t ld, uint32_t n) { \
    attend_prompt<tile, type>(q, ldq, rows, tables, arena, heads, kvheads, dim, index, {scale, cap}, window, sinks, out, ld, n); \
  }
ATTEND_PROMPT(attend_prompt_f32, Tile32, F32, 4)
ATTEND_PROMPT(attend_prompt_bf16, Tile32, BF16, 4)
ATTEND_PROMPT(attend_prompt_int8, Tile32, INT8, 4)
ATTEND_PROMPT(attend_prompt_f32_64, Tile64, F32, 2)
ATTEND_PROMPT(attend_prompt_bf16_64, Tile64, BF16, 2)
ATTEND_PROMPT(attend_prompt_int8_64, Tile64, INT8, 2)
#undef ATTEND_PROMPT
