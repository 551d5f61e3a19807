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

// quantize_step is the scale of a block of activations whose largest magnitude has the bits of top, and its inverse:
// that of tensor.Quantize for Q8_0. A block with NaN or infinity gets the scale NaN.
DEVICE float quantize_step(uint32_t top, float *inverse) {
  float step = div_(as_float(top), 127.f);
  *inverse = div_(1.f, step);
  if (top >= 0x7f800000) step = as_float(0x7fc00000), *inverse = 0;
  else if (*inverse > 3.402823466e38f) step = 0, *inverse = 0;
  return step;
}

// quantize rounds a block of 32 activations, one a lane, to bytes and a scale.
DEVICE void quantize(float x, int8_t *bytes, float *scale, int lane) {
  uint32_t top = as_bits(x) & 0x7fffffff;
  for (int m = 16; m; m >>= 1) {
    uint32_t other = from_lane_xor(top, m);
    top = top > other ? top : other;
  }
  float inverse, step = quantize_step(top, &inverse);
  bytes[lane] = inverse != 0 ? (int8_t)(int)nearest_(mul_(x, inverse)) : 0;
  if (lane == 0) *scale = step;
}

// quantize_quad is quantize of 4 columns of a lane, for whole warps: 8 lanes have a block. Only lanes with `mine` store.
DEVICE void quantize_quad(const float *x, int8_t *bytes, float *scale, bool mine) {
  uint32_t top = 0;
#pragma unroll
  for (int i = 0; i < 4; i++) {
    uint32_t other = as_bits(x[i]) & 0x7fffffff;
    top = top > other ? top : other;
  }
  for (int m = 4; m; m >>= 1) {
    uint32_t other = from_lane_xor(top, m);
    top = top > other ? top : other;
  }
  float inverse, step = quantize_step(top, &inverse);
  uint32_t word = 0;
#pragma unroll
  for (int i = 0; i < 4; i++) word |= (uint32_t)(uint8_t)(inverse != 0 ? (int)nearest_(mul_(x[i], inverse)) : 0) << 8 * i;
  if (mine) *(uint32_t *)bytes = word;
  if (mine && threadIdx.x % 8 == 0) *scale = step;
}

// load_quad reads the first n of 4 numbers, and store_quad writes them.
DEVICE void load_quad(float *to, const float *from, uint32_t n) {
  if (n >= 4 && (uint64_t)from % 16 == 0) {
    float4 v = *(const float4 *)from;
    to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
    return;
  }
#pragma unroll
  for (uint32_t i = 0; i < 4; i++) to[i] = i < n ? from[i] : 0;
}
DEVICE void store_quad(float *to, const float *from, uint32_t n) {
  if (n >= 4 && (uint64_t)to % 16 == 0) {
    *(float4 *)to = {from[0], from[1], from[2], from[3]};
    return;
  }
#pragma unroll
  for (uint32_t i = 0; i < 4; i++)
    if (i < n) to[i] = from[i];
}
