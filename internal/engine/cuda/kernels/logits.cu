// soft_cap is tensor.SoftCap of one number.
DEVICE float soft_cap(float x, float top) {
  return mul_(top, sub_(1.f, div_(2.f, add_(1.f, exp_(mul_(2.f, div_(x, top)))))));
}

// scale_rows is x *= scale, then soft_cap unless cap is 0, of rows of n columns, ld apart.
KERNEL scale_rows(float *x, uint32_t ld, float scale, float cap, uint32_t n) {
  uint32_t c = threadIdx.x + blockIdx.x * blockDim.x;
  if (c >= n) return;
  x += (uint64_t)blockIdx.y * ld + c;
  float y = mul_(*x, scale);
  *x = cap != 0 ? soft_cap(y, cap) : y;
}

// Best is the largest number so far and its place; no place: none.
struct Best {
  uint32_t place;
  float value;
};
#define NO_PLACE 0xffffffffu
#define NO_BEST {NO_PLACE, as_float(0xff800000)}

DEVICE Best better(Best a, Best b) { return b.value > a.value || (b.value == a.value && b.place < a.place) ? b : a; }

DEVICE Best best_of_warp(Best a) {
  for (int m = 16; m; m >>= 1) a = better(a, {from_lane_xor(a.place, m), from_lane_xor(a.value, m)});
  return a;
}

// Columns of a thread block of best_of_parts.
#define BEST_COLUMNS 2048

// best_of_parts finds the best of each part of rows of n columns, ld apart: parts (rows, parts). The lowest index of
// equals wins, and NaN never does.
KERNEL THREADS(256, 4) best_of_parts(const float *x, uint32_t ld, Best *parts, uint32_t n) {
  constexpr uint32_t each = BEST_COLUMNS / 256;
  SHARED Best warps[8];
  x += (uint64_t)blockIdx.y * ld;
  uint32_t first = blockIdx.x * BEST_COLUMNS + threadIdx.x;
  float v[each];
#pragma unroll
  for (uint32_t j = 0; j < each; j++) v[j] = first + j * 256 < n ? x[first + j * 256] : as_float(0x7fc00000); // NaN never wins
  Best best = NO_BEST;
#pragma unroll
  for (uint32_t j = 0; j < each; j++) best = better(best, {first + j * 256, v[j]});
  best = best_of_warp(best);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = best;
  wait_block();
  if (threadIdx.x >= 32) return;
  if (threadIdx.x < 8) best = warps[threadIdx.x];
  best = best_of_warp(best);
  if (threadIdx.x == 0) parts[(uint64_t)blockIdx.y * gridDim.x + blockIdx.x] = best;
}

// best_of_rows is tensor.ArgMax of rows x, ld apart, from the bests of their parts: index, and the number there. A row
// without numbers gives 0.
KERNEL THREADS(32, 1) best_of_rows(const Best *parts, uint32_t count, const float *x, uint32_t ld, uint32_t *index, float *value) {
  Best best = NO_BEST;
  for (uint32_t i = threadIdx.x; i < count; i += 32) best = better(best, parts[(uint64_t)blockIdx.x * count + i]);
  best = best_of_warp(best);
  if (threadIdx.x > 0) return;
  uint32_t place = best.place == NO_PLACE ? 0 : best.place;
  index[blockIdx.x] = place;
  value[blockIdx.x] = x[(uint64_t)blockIdx.x * ld + place];
}
