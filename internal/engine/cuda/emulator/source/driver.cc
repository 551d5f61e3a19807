// A libcuda.so.1 without a card: the driver functions that package cuda calls, with kernels as C++.
// It reports one device. Its memory is that of the host, filled with 0xff when it is allocated. A
// stream is a thread. Variables of the environment:
//   CUDA_EMULATOR_CARDS       number of devices; they share their memory
//   CUDA_EMULATOR_MEMORY      size of a device's memory in bytes
//   CUDA_EMULATOR_OTHERS      bytes of it that other processes hold
//   CUDA_EMULATOR_BUSY=1      another process has the device, in exclusive compute mode
//   CUDA_EMULATOR_CAPABILITY  compute capability, such as 75
//   CUDA_EMULATOR_SHARED      bytes of shared memory of a multiprocessor
//   CUDA_EMULATOR_FAULT       a kernel that flips a bit in its first result
//   CUDA_EMULATOR_FAIL        a file: launches and waits fail as soon as it exists
//   CUDA_EMULATOR_HANG        a file: waits do not return while it exists
#include <algorithm>
#include <condition_variable>
#include <chrono>
#include <deque>
#include <map>
#include <mutex>
#include <stdlib.h>
#include <unistd.h>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kernels.cu"

namespace {
using Work = std::function<void()>;

struct Kernel {
  std::string name;
  int result;                 // parameter that points to what it computes
  std::vector<size_t> sizes;  // of its parameters
  std::function<void(void **)> body;
  size_t dynamic = 48 << 10;  // bytes of dynamic shared memory that a launch may ask for
};

template <class... A, size_t... I> void apply(void (*f)(A...), void **p, std::index_sequence<I...>) { f(*(A *)p[I]...); }
template <class... A> Kernel kernel(const char *name, int result, void (*f)(A...)) {
  return {name, result, {sizeof(A)...}, [f](void **p) { apply(f, p, std::index_sequence_for<A...>()); }};
}

std::map<std::string, Kernel> kernels = [] {
  std::map<std::string, Kernel> m;
#define ADD(name, result) m[#name] = kernel(#name, result, name)
  ADD(add_bias, 0);
  ADD(add_rows, 0);
  ADD(attend_bf16, 12);
  ADD(attend_bf16_4, 12);
  ADD(attend_f32, 12);
  ADD(attend_f32_4, 12);
  ADD(attend_fold, 7);
  ADD(attend_int8, 12);
  ADD(attend_int8_4, 12);
  ADD(attend_prompt_bf16, 13);
  ADD(attend_prompt_bf16_64, 13);
  ADD(attend_prompt_f32, 13);
  ADD(attend_prompt_f32_64, 13);
  ADD(attend_prompt_int8, 13);
  ADD(attend_prompt_int8_64, 13);
  ADD(attend_scores_bf16, 12);
  ADD(attend_scores_f32, 12);
  ADD(attend_scores_int8, 12);
  ADD(best_of_parts, 2);
  ADD(best_of_rows, 4);
  ADD(bf16_product, 2);
  ADD(bf16_product_8, 2);
  ADD(copy_rows, 0);
  ADD(embed, 2);
  ADD(f16_product, 2);
  ADD(f16_product_8, 2);
  ADD(f32_product, 2);
  ADD(f32_product_8, 2);
  ADD(function_of_bits, 3);
  ADD(gate_rows, 6);
  ADD(gather_rows, 0);
  ADD(join_experts, 0);
  ADD(mass_add_bf16, 12);
  ADD(mass_add_f32, 12);
  ADD(mass_add_int8, 12);
  ADD(mass_sums_bf16, 11);
  ADD(mass_sums_f32, 11);
  ADD(mass_sums_int8, 11);
  ADD(pack_rounded, 0);
  ADD(q4_product, 4);
  ADD(q4_product_16, 4);
  ADD(q4_product_32, 4);
  ADD(q4_product_64, 4);
  ADD(q4_product_8, 4);
  ADD(q4_product_tiled, 4);
  ADD(q4_product_tiled_shared, 4);
  ADD(q8_product, 4);
  ADD(q8_product_16, 4);
  ADD(q8_product_32, 4);
  ADD(q8_product_64, 4);
  ADD(q8_product_8, 4);
  ADD(q8_product_tiled, 4);
  ADD(q8_product_tiled_shared, 4);
  ADD(quantize_rows, 2);
  ADD(read_all, 2);
  ADD(rms_norm, 4);
  ADD(rms_norm_split, 4);
  ADD(restore_rows_bf16, 1);
  ADD(restore_rows_f32, 1);
  ADD(restore_rows_int8, 1);
  ADD(rope_write_bf16, 0);
  ADD(rope_write_f32, 0);
  ADD(rope_write_int8, 0);
  ADD(scale_rows, 0);
  ADD(unpack_rounded, 1);
  ADD(weigh_rows, 0);
#undef ADD
  return m;
}();

struct Graph {
  std::vector<Work> work;
};

class Stream {
 public:
  Graph *recording = nullptr;

  void add(Work w) {
    if (recording) return recording->work.push_back(w);
    std::lock_guard<std::mutex> l(mu);
    queue.push_back(std::move(w));
    changed.notify_all();
  }
  bool idle() {
    std::lock_guard<std::mutex> l(mu);
    return queue.empty() && !busy;
  }
  void wait() {
    std::unique_lock<std::mutex> l(mu);
    changed.wait(l, [this] { return queue.empty() && !busy; });
  }
  ~Stream() {
    wait();
    add([this] { ended = true; });
    worker.join();
  }

 private:
  void serve() {
    while (!ended) {
      std::unique_lock<std::mutex> l(mu);
      changed.wait(l, [this] { return !queue.empty(); });
      Work w = std::move(queue.front());
      queue.pop_front();
      busy = true;
      l.unlock();
      w();
      l.lock();
      busy = false;
      changed.notify_all();
    }
  }

  std::mutex mu;
  std::condition_variable changed;
  std::deque<Work> queue;
  bool busy = false, ended = false;
  std::thread worker{[this] { serve(); }};
};

struct Event {
  std::chrono::steady_clock::time_point at;
  Stream *stream = nullptr;
};

size_t setting(const char *name, size_t otherwise) {
  const char *s = getenv(name);
  return s ? strtoull(s, nullptr, 10) : otherwise;
}

const size_t memory = setting("CUDA_EMULATOR_MEMORY", 1 << 30), others = setting("CUDA_EMULATOR_OTHERS", 0);
const size_t shared = setting("CUDA_EMULATOR_SHARED", 228 << 10);
std::mutex allocations_mu;
std::map<void *, size_t> allocations;
size_t allocated;

constexpr int ok = 0, invalid = 1, out_of_memory = 2, unavailable = 46, uncorrectable = 214, not_found = 500, not_ready = 600;

// exists reports whether there is a file that a variable of the environment names.
bool exists(const char *variable) {
  const char *file = getenv(variable);
  return file && access(file, F_OK) == 0;
}
// failed reports whether the device has failed.
bool failed() { return exists("CUDA_EMULATOR_FAIL"); }
}  // namespace

#define DRIVER extern "C" __attribute__((visibility("default"))) int

DRIVER cuInit(unsigned) { return ok; }
DRIVER cuDriverGetVersion(int *v) { return *v = 13000, ok; }
DRIVER cuGetErrorName(int code, const char **s) {
  static const std::map<int, const char *> names = {{invalid, "CUDA_ERROR_INVALID_VALUE"}, {out_of_memory, "CUDA_ERROR_OUT_OF_MEMORY"}, {unavailable, "CUDA_ERROR_DEVICE_UNAVAILABLE"}, {uncorrectable, "CUDA_ERROR_ECC_UNCORRECTABLE"}, {not_found, "CUDA_ERROR_NOT_FOUND"}, {not_ready, "CUDA_ERROR_NOT_READY"}};
  auto i = names.find(code);
  if (i == names.end()) return invalid;
  return *s = i->second, ok;
}
DRIVER cuGetErrorString(int, const char **s) { return *s = "reported by the emulator", ok; }

DRIVER cuDeviceGetCount(int *n) { return *n = setting("CUDA_EMULATOR_CARDS", 1), ok; }
DRIVER cuDeviceGet(int *d, int i) { return *d = i, ok; }
DRIVER cuDeviceGetName(char *s, int n, int) { return snprintf(s, n, "Emulated card"), ok; }
DRIVER cuDeviceGetUuid(uint8_t *id, int) {
  for (int i = 0; i < 16; i++) id[i] = i;
  return ok;
}
DRIVER cuDeviceTotalMem_v2(size_t *n, int) { return *n = memory, ok; }
DRIVER cuDeviceGetAttribute(int *v, int attribute, int) {
  int capability = (int)setting("CUDA_EMULATOR_CAPABILITY", 80);
  const int reserved = 1024;
  const std::map<int, int> values = {{16, 4}, {75, capability / 10}, {76, capability % 10}, {81, (int)shared}, {97, (int)shared - reserved}, {111, reserved}};
  auto i = values.find(attribute);
  return *v = i == values.end() ? 0 : i->second, ok;
}
DRIVER cuDevicePrimaryCtxRetain(void **c, int) { return setting("CUDA_EMULATOR_BUSY", 0) ? unavailable : (*c = (void *)1, ok); }
DRIVER cuDevicePrimaryCtxRelease_v2(int) { return ok; }
DRIVER cuCtxSetCurrent(void *) { return ok; }

DRIVER cuMemGetInfo_v2(size_t *free_, size_t *total) {
  std::lock_guard<std::mutex> l(allocations_mu);
  return *free_ = memory - others - allocated, *total = memory, ok;
}
DRIVER cuMemAlloc_v2(void **p, size_t n) {
  std::lock_guard<std::mutex> l(allocations_mu);
  size_t room = (n + 255) / 256 * 256;
  if (others + allocated + room > memory) return out_of_memory;
  *p = aligned_alloc(256, room);
  memset(*p, 0xff, room);
  allocations[*p] = room, allocated += room;
  return ok;
}
DRIVER cuMemFree_v2(void *p) {
  std::lock_guard<std::mutex> l(allocations_mu);
  auto i = allocations.find(p);
  if (i == allocations.end()) return invalid;
  allocated -= i->second, allocations.erase(i), free(p);
  return ok;
}
DRIVER cuMemHostAlloc(void **p, size_t n, unsigned) {
  size_t room = (n + 4095) / 4096 * 4096;
  *p = aligned_alloc(4096, room);
  memset(*p, 0xff, room);
  return ok;
}
DRIVER cuMemFreeHost(void *p) { return free(p), ok; }
DRIVER cuMemHostRegister_v2(void *, size_t, unsigned) { return ok; }
DRIVER cuMemHostUnregister(void *) { return ok; }

static int copy(void *to, const void *from, size_t n, void *s) {
  ((Stream *)s)->add([=] { memcpy(to, from, n); });
  return ok;
}
DRIVER cuMemcpyHtoDAsync_v2(void *to, const void *from, size_t n, void *s) { return copy(to, from, n, s); }
DRIVER cuMemcpyDtoHAsync_v2(void *to, const void *from, size_t n, void *s) { return copy(to, from, n, s); }
DRIVER cuMemcpyDtoDAsync_v2(void *to, const void *from, size_t n, void *s) { return copy(to, from, n, s); }
DRIVER cuMemsetD32Async(void *p, unsigned v, size_t n, void *s) {
  ((Stream *)s)->add([=] { std::fill_n((uint32_t *)p, n, v); });
  return ok;
}

// A module is all kernels; its PTX is not read.
DRIVER cuModuleLoadDataEx(void **m, const void *, unsigned, int *, void **) { return *m = (void *)1, ok; }
DRIVER cuModuleUnload(void *) { return ok; }
DRIVER cuModuleGetFunction(void **f, void *, const char *name) {
  auto i = kernels.find(name);
  return i == kernels.end() ? not_found : (*f = &i->second, ok);
}
DRIVER cuFuncSetAttribute(void *f, int attribute, int value) {
  if (attribute != 8) return ok;
  if (value < 0 || (size_t)value > std::min(shared, emulator::dynamic_most)) return invalid;
  return ((Kernel *)f)->dynamic = value, ok;
}
DRIVER cuFuncGetAttribute(int *v, int, void *) { return *v = 0, ok; }
DRIVER cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned dynamic, void *s, void **parameters, void **) {
  auto *k = (Kernel *)f;
  if (failed()) return uncorrectable;
  if (gx == 0 || gy == 0 || gz != 1 || bx == 0 || bx > 1024 || by != 1 || bz != 1 || dynamic > k->dynamic) return invalid;
  std::vector<std::vector<uint8_t>> copies;
  for (size_t i = 0; i < k->sizes.size(); i++) copies.emplace_back((uint8_t *)parameters[i], (uint8_t *)parameters[i] + k->sizes[i]);
  ((Stream *)s)->add([=]() mutable {
    static std::mutex one;  // the lanes of one kernel at a time
    std::lock_guard<std::mutex> l(one);
    std::vector<void *> p;
    for (auto &c : copies) p.push_back(c.data());
    emulator::run({gx, gy, 1}, {bx, 1, 1}, dynamic, [&] { k->body(p.data()); });
    const char *fault = getenv("CUDA_EMULATOR_FAULT");
    // The lowest bit of a score can vanish in the softmax.
    uint32_t bit = k->name.rfind("attend_scores", 0) == 0 ? 1 << 16 : 1;
    if (fault && k->name == fault && *(uint32_t **)p[k->result]) **(uint32_t **)p[k->result] ^= bit;
  });
  return ok;
}

// A stream takes memory of the device, as with the real driver.
const size_t stream_bytes = 2 << 20;

DRIVER cuStreamCreate(void **s, unsigned) {
  std::lock_guard<std::mutex> l(allocations_mu);
  if (others + allocated + stream_bytes > memory) return out_of_memory;
  return allocated += stream_bytes, *s = new Stream, ok;
}
DRIVER cuStreamDestroy_v2(void *s) {
  std::lock_guard<std::mutex> l(allocations_mu);
  return allocated -= stream_bytes, delete (Stream *)s, ok;
}
DRIVER cuStreamSynchronize(void *s) {
  while (exists("CUDA_EMULATOR_HANG")) usleep(1000);
  return ((Stream *)s)->wait(), failed() ? uncorrectable : ok;
}
DRIVER cuStreamQuery(void *s) { return ((Stream *)s)->idle() ? ok : not_ready; }
DRIVER cuEventCreate(void **e, unsigned) { return *e = new Event, ok; }
DRIVER cuEventDestroy_v2(void *e) { return delete (Event *)e, ok; }
DRIVER cuEventRecord(void *e, void *s) {
  ((Event *)e)->stream = (Stream *)s;
  ((Stream *)s)->add([=] { ((Event *)e)->at = std::chrono::steady_clock::now(); });
  return ok;
}
DRIVER cuEventSynchronize(void *e) { return ((Event *)e)->stream->wait(), ok; }
DRIVER cuEventElapsedTime(float *ms, void *a, void *b) {
  return *ms = std::chrono::duration<float, std::milli>(((Event *)b)->at - ((Event *)a)->at).count(), ok;
}

DRIVER cuStreamBeginCapture_v2(void *s, int) { return ((Stream *)s)->recording = new Graph, ok; }
DRIVER cuStreamEndCapture(void *s, void **g) { return *g = std::exchange(((Stream *)s)->recording, nullptr), ok; }
DRIVER cuGraphInstantiateWithFlags(void **x, void *g, unsigned long long) { return *x = new Graph(*(Graph *)g), ok; }
DRIVER cuGraphLaunch(void *x, void *s) {
  for (auto &w : ((Graph *)x)->work) ((Stream *)s)->add(w);
  return ok;
}
DRIVER cuGraphDestroy(void *g) { return delete (Graph *)g, ok; }
DRIVER cuGraphExecDestroy(void *x) { return delete (Graph *)x, ok; }
