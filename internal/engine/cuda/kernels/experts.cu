// What experts need beside products: a pair is a token and an expert chosen for it.

// gather_rows copies rows of n words: row i of `to` is row rows[i] of `from`.
KERNEL gather_rows(uint32_t *to, const uint32_t *from, const uint32_t *rows, uint32_t n) {
  uint32_t c = threadIdx.x + blockIdx.x * blockDim.x;
  if (c < n) to[(uint64_t)blockIdx.y * n + c] = from[(uint64_t)rows[blockIdx.y] * n + c];
}

// weigh_rows multiplies each row of n numbers by its factor.
KERNEL weigh_rows(float *x, const float *factors, uint32_t n) {
  uint32_t c = threadIdx.x + blockIdx.x * blockDim.x;
  if (c >= n) return;
  uint64_t at = (uint64_t)blockIdx.y * n + c;
  x[at] = mul_(x[at], factors[blockIdx.y]);
}

// join_experts adds a token's outputs x[pairs[token*count+j]*ld], in the order of j, to y[token*ld], of n columns.
// With factors (tokens), it first multiplies y by the sigmoid of the token's. With `fresh`, y begins with the
// first output.
KERNEL join_experts(float *y, const float *x, const uint32_t *pairs, uint32_t count, const float *factors, uint32_t fresh, uint32_t ld, uint32_t n) {
  uint32_t c = threadIdx.x + blockIdx.x * blockDim.x, token = blockIdx.y;
  if (c >= n) return;
  y += (uint64_t)token * ld + c;
  pairs += token * count;
  float sum = fresh ? 0 : *y;
  if (factors) sum = mul_(sum, div_(1.f, add_(1.f, exp_(-factors[token]))));
  for (uint32_t j = 0; j < count; j++) {
    float v = x[(uint64_t)pairs[j] * ld + c];
    sum = fresh && j == 0 ? v : add_(sum, v);
  }
  *y = sum;
}
