// kernels/device.h on a CPU. A lane is a fiber, and a block runs on one thread. The emulation is
// stricter than a card in two ways: shared memory holds garbage when a block begins, and a barrier
// that some lanes do not reach ends the program.
#pragma once
#include <math.h>
#include <stdint.h>
#include <string.h>

#include <functional>

struct uint4 { uint32_t x, y, z, w; };
struct float4 { float x, y, z, w; };
struct Dim { uint32_t x, y, z; };

namespace emulator {
extern Dim thread, block, blocks, threads;
// exchange gives a word to the lanes of a warp, and returns that of the lane whose number differs
// in the bits of mask.
uint32_t exchange(uint32_t word, int mask);
void wait_block();
// run calls body once for each lane of a grid.
void run(Dim blocks, Dim threads, const std::function<void()> &body);
}  // namespace emulator

#define threadIdx (emulator::thread)
#define blockIdx (emulator::block)
#define gridDim (emulator::blocks)
#define blockDim (emulator::threads)
#define KERNEL static void
#define THREADS(threads, blocks)
#define DEVICE static inline
#define SHARED static __attribute__((section("shared_memory")))

// Compiled with -ffp-contract=off: each is one operation.
DEVICE float fma_(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
DEVICE float mul_(float a, float b) { return a * b; }
DEVICE float add_(float a, float b) { return a + b; }
DEVICE float sub_(float a, float b) { return a - b; }
DEVICE float div_(float a, float b) { return a / b; }
DEVICE float sqrt_(float a) { return __builtin_sqrtf(a); }
DEVICE float nearest_(float a) { return rintf(a); }
DEVICE float from_int(int a) { return (float)a; }
DEVICE int dot4(int a, int b, int c) {
  for (int i = 0; i < 4; i++) c += (int8_t)(a >> 8 * i) * (int8_t)(b >> 8 * i);
  return c;
}
DEVICE float as_float(uint32_t u) {
  float f;
  memcpy(&f, &u, 4);
  return f;
}
DEVICE uint32_t as_bits(float f) {
  uint32_t u;
  memcpy(&u, &f, 4);
  return u;
}
DEVICE float from_half(uint16_t h) {
  _Float16 f;
  memcpy(&f, &h, 2);
  return (float)f;
}
template <class T> DEVICE T from_lane_xor(T v, int mask) {
  static_assert(sizeof(T) == 4, "lanes exchange words");
  uint32_t word;
  memcpy(&word, &v, 4);
  word = emulator::exchange(word, mask);
  memcpy(&v, &word, 4);
  return v;
}
DEVICE void wait_block() { emulator::wait_block(); }
DEVICE uint4 load_once(const uint4 *p) { return *p; }
