// Package tensor holds the numeric types and kernels: weights in panels, matrix products, attention
// over cache blocks, and the small operations between them.
//
// Every operation has one canonical order of float32 operations, specified in
// docs/decisions/canonical-arithmetic.md. Portable Go, AVX2 and AVX-512 follow it exactly, so
// results are equal bit for bit on every machine, for every batch size, thread count and cut of the
// work. In short:
//
//   - A contraction axis is cut into blocks of [BlockWidth] and at most
//     [MaxUnits] units ([Units]). Inside a unit each output element is one chain
//     of fused multiply-adds from +0 in axis order; units are summed by a fixed
//     binary tree ([Subtrees], [CombineTree]).
//   - Long reductions (RMS norm, softmax sums) run in 16 lanes, element i in
//     lane i mod 16, and end in the tree lane j + lane j+8, j+4, j+2, j+1.
//   - Attention walks slots in slot order in blocks of [BlockSlots]; runs of
//     [RunSlots] slots start from zero and are folded in their order.
//
// [Arithmetic] is the version of these orders.
//
// A NaN result is NaN on every implementation, but its sign and payload bits are not specified.
//
// Too short slices and mismatched shapes are broken invariants of the caller and panic. Sizes from
// outside are checked by [NewWeight] and [KVLayout.Validate], which return errors.
package tensor
