// kernels/device.h on a CPU. A lane is a fiber, and a block runs on one thread. The emulation is
// stricter than a card in two ways: shared memory holds garbage when a block begins, and a barrier
// that some lanes do not reach ends the program.
#pragma once
#include <math.h>
#include <stdint.h>
#include <string.h>

#include <functional>

struct uint2 { uint32_t x, y; };
struct alignas(16) uint4 { uint32_t x, y, z, w; };
struct float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct Dim { uint32_t x, y, z; };

namespace emulator {
extern Dim thread, block, blocks, threads;
// exchange gives a word to the lanes of a warp, and returns that of the lane whose number differs
// in the bits of mask.
uint32_t exchange(uint32_t word, int mask);
// share gives n words, at most 6, to the lanes of a warp, and returns those of lane 0, lane 1, and so
// on, valid until the next call.
constexpr int shared_words = 6;
const uint32_t *share(const uint32_t *words, int n);
// Copies are made when the lane waits for them, not before.
void copy(void *to, const void *from, size_t n);
void end_copies();
void wait_copies(size_t but);
void wait_block();
// dynamic is the beginning of a block's dynamic shared memory. An access after its end ends the program.
extern uint8_t *dynamic;
constexpr size_t dynamic_most = 227 << 10;
// run calls body once for each lane of a grid, whose blocks have some bytes of dynamic shared memory.
void run(Dim blocks, Dim threads, size_t shared, const std::function<void()> &body);
}  // namespace emulator

#define threadIdx (emulator::thread)
#define blockIdx (emulator::block)
#define gridDim (emulator::blocks)
#define blockDim (emulator::threads)
#define KERNEL static void
#define THREADS(threads, blocks)
#define DEVICE static inline
#define DEVICE_METHOD inline
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
DEVICE void wait_warp() { emulator::exchange(0, 0); }
template <class T> DEVICE T load_once(const T *p) { return *p; }
typedef uint64_t shared_address;
DEVICE shared_address address_of(const void *shared) { return (uint64_t)shared; }
DEVICE void *dynamic_shared() { return emulator::dynamic; }
template <class T> DEVICE void load_shared(T &v, shared_address from) { v = *(const T *)from; }
DEVICE void store_shared(shared_address to, float4 v) { *(float4 *)to = v; }
DEVICE void copy16(shared_address to, const void *from) { emulator::copy((void *)to, from, 16); }
DEVICE void copy4(shared_address to, const void *from) { emulator::copy((void *)to, from, 4); }
DEVICE void copy16(void *to, const void *from) { copy16(address_of(to), from); }
DEVICE void end_copies() { emulator::end_copies(); }
template <int n> DEVICE void wait_copies() { emulator::wait_copies(n); }

template <class T> DEVICE void keep(T &) {}

// load_matrices reads through the addresses of all lanes.
DEVICE void load_matrices(uint32_t *v, shared_address address) {
  uint32_t words[2] = {(uint32_t)address, (uint32_t)(address >> 32)}, lane = threadIdx.x % 32;
  const uint32_t *all = emulator::share(words, 2);
  for (uint32_t m = 0; m < 4; m++) {
    const uint32_t *from = all + emulator::shared_words * (m * 8 + lane / 4);
    v[m] = ((const uint32_t *)(from[0] | (uint64_t)from[1] << 32))[lane % 4];
  }
}

// multiply8 computes this lane's four sums from the words of all lanes.
DEVICE void multiply8(int *c, const uint32_t *a, const uint32_t *b) {
  uint32_t mine[6] = {a[0], a[1], a[2], a[3], b[0], b[1]};
  const uint32_t *all = emulator::share(mine, 6);
  uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  for (uint32_t i = 0; i < 4; i++)
    for (uint32_t from = 0; from < 4; from++) {
      const uint32_t *row = all + 6 * (g * 4 + from), *column = all + 6 * ((2 * t + i % 2) * 4 + from);
      c[i] = dot4(row[i / 2], column[4], dot4(row[i / 2 + 2], column[5], c[i]));
    }
}
