// function_of_bits is a function of the n floats whose bits are first, first+step, first+2*step and so
// on: for comparisons with package tensor. Numbers from 2 on are activations.
KERNEL function_of_bits(uint32_t function, uint32_t first, uint32_t step, float *y, uint32_t n) {
  uint32_t i = threadIdx.x + blockIdx.x * blockDim.x;
  if (i >= n) return;
  float x = as_float(first + i * step);
  y[i] = function == 0 ? exp_(x) : function == 1 ? div_(1.f, sqrt_(add_(x, 0.f))) : gate_mul(function - 2, x, 1.f);
}
