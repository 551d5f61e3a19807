// element reads column c of a row of a checkpoint.
DEVICE float element(const uint8_t *row, uint32_t type, uint32_t c) {
  switch (type) {
    case F32: return ((const float *)row)[c];
    case BF16: return from_bf16(((const uint16_t *)row)[c]);
    case F16: return from_half(((const uint16_t *)row)[c]);
    case Q8_0: row += c / 32 * 34; return mul_(from_half(*(const uint16_t *)row), from_int(((const int8_t *)row)[2 + c % 32]));
    default: row += c / 32 * 18; return mul_(from_half(*(const uint16_t *)row), from_int((row[2 + c % 16] >> c % 32 / 16 * 4 & 15) - 8));
  }
}

// embed is out (rows, cols) = table[token] * scale, for a table with the rows of a checkpoint.
KERNEL embed(const uint8_t *table, const uint32_t *tokens, float *out, uint32_t cols, uint32_t type, float scale) {
  uint32_t c = threadIdx.x + blockIdx.x * blockDim.x;
  if (c >= cols) return;
  uint64_t bytes = type == F32 ? 4 * cols : type <= F16 ? 2 * cols : cols / 32 * (type == Q8_0 ? 34 : 18);
  out[(uint64_t)blockIdx.y * cols + c] = mul_(element(table + tokens[blockIdx.y] * bytes, type, c), scale);
}
