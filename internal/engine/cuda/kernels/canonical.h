// Functions in the canonical order of package tensor (math.go, ops.go, quantized.go).
#pragma once
#include "device.h"

// exp_ is tensor.Exp: e^x by a polynomial of degree 6 on |r| <= ln(2)/2.
DEVICE float exp_(float of) {
  float x = fmaxf(-104.f, fminf(89.f, of));
  float n = nearest_(mul_(x, 0x1.715476p+0f));
  float r = fma_(n, 0x1.05c61p-29f, fma_(n, -0x1.62e43p-1f, x));
  float p = fma_(0x1.6a69a6p-10f, r, 0x1.123860p-7f);
  p = fma_(p, r, 0x1.55589ep-5f);
  p = fma_(p, r, 0x1.555494p-3f);
  p = fma_(p, r, 0x1.fffffcp-2f);
  p = fma_(p, r, 1.f);
  p = fma_(p, r, 1.f);
  int exponent = (int)n, low = exponent >> 1, high = exponent - low;
  float y = mul_(mul_(p, as_float((uint32_t)(127 + low) << 23)), as_float((uint32_t)(127 + high) << 23));
  return of != of ? of : y; // no branch, so that several are computed at once
}

// silu_mul is tensor.SiLUMul of one element.
DEVICE float silu_mul(float gate, float up) { return mul_(div_(gate, add_(1.f, exp_(-gate))), up); }

// quantize rounds a block of 32 activations, one a lane, to bytes and a scale, as tensor.Quantize
// for Q8_0. A block with NaN or infinity gets the scale NaN.
DEVICE void quantize(float x, int8_t *bytes, float *scale, int lane) {
  uint32_t top = as_bits(x) & 0x7fffffff;
  for (int m = 16; m; m >>= 1) {
    uint32_t other = from_lane_xor(top, m);
    top = top > other ? top : other;
  }
  float step = div_(as_float(top), 127.f), inverse = div_(1.f, step);
  if (top >= 0x7f800000) step = as_float(0x7fc00000), inverse = 0;
  else if (inverse > 3.402823466e38f) step = 0, inverse = 0;
  bytes[lane] = inverse != 0 ? (int8_t)(int)nearest_(mul_(x, inverse)) : 0;
  if (lane == 0) *scale = step;
}
