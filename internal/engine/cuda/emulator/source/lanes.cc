// The lanes of a block as fibers: they run in turn, each until it waits for others.
#include "host.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include <deque>
#include <vector>

extern uint8_t __start_shared_memory[], __stop_shared_memory[];

// continue_at pushes the callee-saved registers, stores the stack pointer in *stored, and continues on
// another stack, from which it pops the registers. swapcontext would make two system calls per switch,
// which take most of the time of a short kernel.
extern "C" void continue_at(void *stack, void **stored);
asm(R"(
.pushsection .text
.type continue_at, @function
continue_at:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rsi)
  movq %rdi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size continue_at, . - continue_at
.popsection
)");

namespace emulator {
Dim thread, block, blocks, threads;
uint8_t *dynamic;

namespace {
constexpr size_t stack_bytes = 64 << 10;

struct Warp {
  uint64_t round;  // number of exchanges
  uint32_t arrived;
  uint32_t words[2][32][shared_words];  // of this round and the one before
};

struct Copy {
  void *to;
  const void *from;
  size_t bytes;
};

struct Lane {
  std::deque<std::vector<Copy>> copies = {{}};  // groups; the last one is open
  void *stack;                                  // stack pointer while the lane waits
  uint32_t number;
  bool ended;
};

// guard is the page after dynamic shared memory, which is in front of it.
uint8_t *const guard = [] {
  constexpr size_t page = 4096, before = (dynamic_most + page - 1) / page * page;
  auto at = (uint8_t *)mmap(nullptr, before + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED || mprotect(at + before, page, PROT_NONE) != 0) abort();
  return at + before;
}();

void *scheduler;  // stack pointer of run_block while a lane runs
uint8_t *stacks;
size_t stacks_size;
std::vector<Lane> lanes;
std::vector<Warp> warps;
Lane *current;
const std::function<void()> *body;
uint64_t progress;  // rises when a lane arrives somewhere or ends
uint64_t barrier_round;
uint32_t barrier_arrived;

// CUDA_EMULATOR_REVERSE runs the lanes of a block, and the blocks, from the last to the first.
const bool reverse = getenv("CUDA_EMULATOR_REVERSE") != nullptr;

void pause() { continue_at(scheduler, &current->stack); }

void enter() {
  (*body)();
  current->ended = true;
  progress++;
  pause();
}

void run_block() {
  memset(__start_shared_memory, 0xff, __stop_shared_memory - __start_shared_memory);
  memset(dynamic, 0xff, guard - dynamic);
  barrier_arrived = 0;
  for (auto &w : warps) w = {};
  for (uint32_t i = 0; i < lanes.size(); i++) {
    Lane &l = lanes[i];
    l.number = i, l.ended = false;
    if (l.copies.size() > 1 || !l.copies.front().empty()) l.copies = {{}};
    // The layout that continue_at expects: six registers and the return address. enter does not return.
    auto top = (void **)(&stacks[(i + 1) * stack_bytes]);
    top[-2] = (void *)enter;
    l.stack = top - 8;
  }
  for (size_t left = lanes.size(); left > 0;) {
    uint64_t before = progress;
    for (size_t i = 0; i < lanes.size(); i++) {
      current = &lanes[reverse ? lanes.size() - 1 - i : i];
      if (current->ended) continue;
      thread = {current->number, 0, 0};
      continue_at(current->stack, &scheduler);
      left -= current->ended;
    }
    if (left > 0 && progress == before) {
      fprintf(stderr, "emulator: %zu lanes of block %u,%u wait for lanes that do not come\n", left, block.x, block.y);
      abort();
    }
  }
}
}  // namespace

const uint32_t *share(const uint32_t *words, int n) {
  uint32_t lane = current->number % 32;
  Warp &w = warps[current->number / 32];
  uint64_t round = w.round;
  memcpy(w.words[round % 2][lane], words, 4 * n);
  progress++;
  if (++w.arrived == 32) w.arrived = 0, w.round++;
  while (w.round == round) pause();
  return w.words[round % 2][0];
}

uint32_t exchange(uint32_t word, int mask) {
  uint32_t other = (current->number % 32) ^ mask;
  return share(&word, 1)[other * shared_words];
}

void copy(void *to, const void *from, size_t n) { current->copies.back().push_back({to, from, n}); }

void end_copies() { current->copies.emplace_back(); }

void wait_copies(size_t but) {
  for (auto &groups = current->copies; groups.size() - 1 > but; groups.pop_front())
    for (const Copy &c : groups.front()) memcpy(c.to, c.from, c.bytes);
}

void wait_block() {
  uint64_t round = barrier_round;
  progress++;
  if (++barrier_arrived == lanes.size()) barrier_arrived = 0, barrier_round++;
  while (barrier_round == round) pause();
}

void run(Dim grid, Dim shape, size_t shared, const std::function<void()> &f) {
  body = &f, blocks = grid, threads = shape, dynamic = guard - (shared + 15) / 16 * 16;
  lanes.resize(shape.x);
  warps.resize((shape.x + 31) / 32);
  if (size_t need = shape.x * stack_bytes; stacks_size < need) {
    free(stacks);
    stacks = (uint8_t *)aligned_alloc(4096, stacks_size = need);
  }
  uint64_t n = (uint64_t)grid.x * grid.y;
  for (uint64_t i = 0; i < n; i++) {
    uint64_t b = reverse ? n - 1 - i : i;
    block = {(uint32_t)(b % grid.x), (uint32_t)(b / grid.x), 0};
    run_block();
  }
}
}  // namespace emulator
