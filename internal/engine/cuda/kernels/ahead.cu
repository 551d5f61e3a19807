// Blocks of threads after `work` (of blockIdx.y) read weights of the next product into the second-level cache, while
// the others wait for memory and for one another.
struct Ahead {
  const uint8_t *weights;
  uint64_t bytes;
  uint32_t work;

  DEVICE_METHOD bool reads() const {
    if (blockIdx.y < work) return false;
    uint64_t blocks = (uint64_t)(gridDim.y - work) * gridDim.x, block = (uint64_t)(blockIdx.y - work) * gridDim.x + blockIdx.x;
    for (uint64_t i = (block * blockDim.x + threadIdx.x) * 32; i < bytes; i += blocks * blockDim.x * 32) prefetch(weights + i);
    return true;
  }
};
#define AHEAD_PARAMETERS const uint8_t *weights, uint64_t bytes_ahead, uint32_t work
#define AHEAD Ahead{weights, bytes_ahead, work}

