// quantize_rows rounds rows x[i*ld] of n numbers, a multiple of 32: bytes (rows, n), scales (rows,
// n/32). A thread has 4 columns.
KERNEL THREADS(256, 4) quantize_rows(const float *x, uint32_t ld, int8_t *bytes, float *scales, uint32_t n) {
  uint32_t c = (threadIdx.x + blockIdx.x * 256) * 4;
  uint64_t at = (uint64_t)blockIdx.y * n + c;
  float v[4] = {};
  if (c < n) load_quad(v, x + (uint64_t)blockIdx.y * ld + c, 4);
  quantize_quad(v, bytes + at, scales + at / 32, c < n);
}

// gelu is x Phi(x), as package tensor computes it (gelu.go).
DEVICE float gelu(float x) {
  float z = mul_(x < 0 ? -x : x, 0x1.6a09e6p-01f);
  float t = div_(1.f, fma_(z, 0x1.4f740ap-02f, 1.f));
  float p = fma_(0x1.0fb844p-01f, t, -0x1.7401c6p-01f);
  p = fma_(p, t, 0x1.6be1c6p-01f);
  p = fma_(p, t, -0x1.23531cp-03f);
  p = fma_(p, t, 0x1.04f20cp-03f);
  p = mul_(p, t);
  float tail = mul_(p, exp_(-mul_(z, z)));
  return mul_(x, x >= 0 ? sub_(1.f, tail) : tail);
}

// gate_mul is tensor.Activation.Mul of one element, by the number of the activation.
DEVICE float gate_mul(uint32_t activation, float g, float u) {
  switch (activation) {
    case 0: return silu_mul(g, u);
    case 1: return mul_(div_(g, add_(1.f, exp_(mul_(add_(mul_(mul_(g, g), -0x1.2444f2p-4f), -0x1.988454p+0f), g)))), u);
    case 2:
      g = g > 7.f ? 7.f : g;
      u = u > 7.f ? 7.f : u;
      u = u < -7.f ? -7.f : u;
      return mul_(div_(g, add_(1.f, exp_(mul_(g, -0x1.b3b646p+0f)))), add_(u, 1.f));
    default: return mul_(gelu(g), u);
  }
}

// gate_quad is gate_mul of 4 elements, to g.
template <uint32_t activation> DEVICE void gate_quad(float *g, const float *u) {
#pragma unroll
  for (int i = 0; i < 4; i++) g[i] = gate_mul(activation, g[i], u[i]);
}

// gate_rows is activation(gate + gate_bias) * (up + up_bias) of rows of n columns, ld apart. A bias
// may be null. The result goes to out (rows, n), or rounded to bytes and scales, or to both. A thread has 4 columns.
KERNEL THREADS(256, 4) gate_rows(uint32_t activation, const float *gate, const float *up, uint32_t ld, const float *gate_bias, const float *up_bias, float *out, int8_t *bytes, float *scales, uint32_t n) {
  uint32_t c = (threadIdx.x + blockIdx.x * 256) * 4;
  if (c - threadIdx.x % 32 * 4 >= n) return; // whole warps
  uint64_t from = (uint64_t)blockIdx.y * ld + c, at = (uint64_t)blockIdx.y * n + c;
  uint32_t mine = c < n ? n - c : 0;
  float g[4] = {}, u[4] = {};
  if (mine) {
    load_quad(g, gate + from, mine), load_quad(u, up + from, mine);
    float by[4];
    if (gate_bias) {
      load_quad(by, gate_bias + c, mine);
#pragma unroll
      for (int i = 0; i < 4; i++) g[i] = add_(g[i], by[i]);
    }
    if (up_bias) {
      load_quad(by, up_bias + c, mine);
#pragma unroll
      for (int i = 0; i < 4; i++) u[i] = add_(u[i], by[i]);
    }
    switch (activation) {
      case 0: gate_quad<0>(g, u); break;
      case 1: gate_quad<1>(g, u); break;
      case 2: gate_quad<2>(g, u); break;
      default: gate_quad<3>(g, u);
    }
    if (out) store_quad(out + at, g, mine);
  }
  if (bytes) quantize_quad(g, bytes + at, scales + at / 32, mine);
}

// add_rows is x += y, then x += bias where there is one, of rows of n columns.
KERNEL add_rows(float *x, const float *y, const float *bias, uint32_t n) {
  uint32_t c = threadIdx.x + blockIdx.x * blockDim.x;
  if (c >= n) return;
  uint64_t at = (uint64_t)blockIdx.y * n + c;
  float sum = add_(x[at], y[at]);
  x[at] = bias ? add_(sum, bias[c]) : sum;
}
