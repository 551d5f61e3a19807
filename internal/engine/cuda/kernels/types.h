// Types of numbers, numbered as tensor.DType, and what is done with single numbers of a type.
#pragma once
#include "canonical.h"

enum { F32, BF16, F16, Q8_0, Q4_0, INT8 };

DEVICE float from_bf16(uint16_t h) { return as_float((uint32_t)h << 16); }

// to_bf16 rounds to the nearest bfloat16, ties to even; NaN stays NaN.
DEVICE uint16_t to_bf16(float f) {
  uint32_t b = as_bits(f);
  return f != f ? b >> 16 | 0x40 : (b + 0x7fff + (b >> 16 & 1)) >> 16;
}

// bytes_of is the size of a number in a cache.
template <int type> constexpr uint32_t bytes_of = type == F32 ? 4 : type == BF16 ? 2 : 1;
