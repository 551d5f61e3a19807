// The operations that kernels are written with. NVIDIA's compiler makes single instructions with
// explicit rounding of them. Without it they are those of emulator/host.h, which run on a CPU.
#pragma once
#ifdef __CUDACC_RTC__ // NVRTC has no standard headers
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned uint32_t;
typedef unsigned long long uint64_t;
#else
#include <stdint.h>
#endif
#ifndef __CUDACC__
#include "host.h"
#else

#define KERNEL extern "C" __global__ void
// THREADS bounds the threads of a block, and asks for registers that let that many blocks share a
// multiprocessor.
#define THREADS(threads, blocks) __launch_bounds__(threads, blocks)
#define DEVICE static __device__ __forceinline__
#define DEVICE_METHOD __device__ __forceinline__
#define SHARED __shared__

// Arithmetic: rounded to nearest, never contracted, subnormals kept.
DEVICE float fma_(float a, float b, float c) { return __fmaf_rn(a, b, c); }
DEVICE float mul_(float a, float b) { return __fmul_rn(a, b); }
DEVICE float add_(float a, float b) { return __fadd_rn(a, b); }
DEVICE float sub_(float a, float b) { return __fsub_rn(a, b); }
DEVICE float div_(float a, float b) { return __fdiv_rn(a, b); }
DEVICE float sqrt_(float a) { return __fsqrt_rn(a); }
DEVICE float nearest_(float a) { return rintf(a); }
DEVICE float from_int(int a) { return __int2float_rn(a); }
// dot4 adds the products of four signed bytes to c.
DEVICE int dot4(int a, int b, int c) {
  int d;
  asm("dp4a.s32.s32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c)); // __dp4a is a call in NVRTC
  return d;
}

// Bits.
DEVICE float as_float(uint32_t u) { return __uint_as_float(u); }
DEVICE uint32_t as_bits(float f) { return __float_as_uint(f); }
DEVICE float from_half(uint16_t h) {
  float f;
  asm("{ .reg .b16 t; mov.b16 t, %1; cvt.f32.f16 %0, t; }" : "=f"(f) : "h"(h));
  return f;
}

// Lanes and blocks.
template <class T> DEVICE T from_lane_xor(T v, int mask) { return __shfl_xor_sync(~0u, v, mask); }
DEVICE void wait_block() { __syncthreads(); }
DEVICE void wait_warp() { __syncwarp(); }

// multiply8 adds the products of a (16 rows, 32 columns) and b (32 columns, 8 rows) of signed bytes to
// c (16 rows, 8 rows), of a warp. Lane 4*g+t has of a the rows g and g+8, of b the row g, each the
// columns of t: a[0] and a[2], a[1] and a[3], b[0] and b[1] are two words of one row. It has of c
// the rows g (c[0], c[1]) and g+8, columns 2t and 2t+1. Sums are exact, so any order of columns will
// do that is the same for a and b.
DEVICE void multiply8(int *c, const uint32_t *a, const uint32_t *b) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// keep makes the compiler compute a number here, and hold it in a register instead of computing it again.
DEVICE void keep(uint32_t &x) { asm volatile("" : "+r"(x)); }
DEVICE void keep(float &x) { asm volatile("" : "+f"(x)); }

// shared_address is an address in shared memory. A kernel that computes it once and adds to it reads with fewer
// instructions than through a pointer, whose conversion the compiler repeats.
typedef uint32_t shared_address;
DEVICE shared_address address_of(const void *shared) { return (uint32_t)__cvta_generic_to_shared(shared); }
// dynamic_shared is the beginning of the shared memory whose size the launch gives.
DEVICE void *dynamic_shared() {
  extern __shared__ uint4 dynamic_memory[];
  return dynamic_memory;
}
DEVICE void load_shared(uint16_t &v, shared_address from) { asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(from) : "memory"); }
DEVICE void load_shared(uint32_t &v, shared_address from) { asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(from) : "memory"); }
DEVICE void load_shared(float &v, shared_address from) { asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(from) : "memory"); }
DEVICE void load_shared(float2 &v, shared_address from) {
  asm volatile("ld.shared.v2.f32 {%0,%1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(from) : "memory");
}
DEVICE void load_shared(float4 &v, shared_address from) {
  asm volatile("ld.shared.v4.f32 {%0,%1,%2,%3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(from) : "memory");
}
DEVICE void store_shared(shared_address to, float4 v) {
  asm volatile("st.shared.v4.f32 [%0], {%1,%2,%3,%4};" ::"r"(to), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w) : "memory");
}

// load_matrices reads four matrices of 8 rows of 16 bytes from shared memory. Lane 8*m+r gives the address of row r of
// matrix m; lane 4*r+t gets word t of row r of each.
DEVICE void load_matrices(uint32_t *v, shared_address row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
               : "r"(row)
               : "memory");
}

// Memory. load_once reads what is used once, around the first-level cache.
DEVICE uint4 load_once(const uint4 *p) {
  uint4 v;
  asm("ld.global.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
  return v;
}
DEVICE uint2 load_once(const uint2 *p) {
  uint2 v;
  asm("ld.global.L1::no_allocate.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p));
  return v;
}
// copy16 and copy4 copy 16 and 4 bytes to shared memory in the background. end_copies ends a group of copies, and
// wait_copies<n> waits for this thread's groups but the last n.
DEVICE void copy16(shared_address to, const void *from) { asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory"); }
DEVICE void copy4(shared_address to, const void *from) { asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory"); }
DEVICE void copy16(void *to, const void *from) { copy16(address_of(to), from); }
DEVICE void end_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int n> DEVICE void wait_copies() { asm volatile("cp.async.wait_group %0;" ::"n"(n) : "memory"); }
#endif
