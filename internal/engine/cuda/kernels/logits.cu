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
  float value;
  uint32_t place;
};
#define NO_PLACE 0xffffffffu

DEVICE Best better(Best a, Best b) { return b.value > a.value || (b.value == a.value && b.place < a.place) ? b : a; }

DEVICE Best best_of_warp(Best a) {
  for (int m = 16; m; m >>= 1) a = better(a, {from_lane_xor(a.value, m), from_lane_xor(a.place, m)});
  return a;
}

// best_of_rows is tensor.ArgMax of each row of n columns, ld apart: index, and the number there. The
// lowest index of equals wins, NaN never does, and a row without numbers gives 0.
KERNEL THREADS(1024, 1) best_of_rows(const float *x, uint32_t ld, uint32_t *index, float *value, uint32_t n) {
  SHARED Best warps[32];
  x += (uint64_t)blockIdx.x * ld;
  Best best = {as_float(0xff800000), NO_PLACE};
  for (uint32_t i = threadIdx.x; i < n; i += 8 * 1024) {
    float v[8];
#pragma unroll
    for (uint32_t j = 0; j < 8; j++) v[j] = i + j * 1024 < n ? x[i + j * 1024] : as_float(0x7fc00000); // NaN never wins
#pragma unroll
    for (uint32_t j = 0; j < 8; j++) best = better(best, {v[j], i + j * 1024});
  }
  best = best_of_warp(best);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = best;
  wait_block();
  if (threadIdx.x >= 32) return;
  best = best_of_warp(warps[threadIdx.x]);
  if (threadIdx.x == 0) {
    uint32_t place = best.place == NO_PLACE ? 0 : best.place;
    index[blockIdx.x] = place;
    value[blockIdx.x] = x[place];
  }
}
