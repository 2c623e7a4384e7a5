#include "tests/simulation/fiber.h"

#include <cxxabi.h>
#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <utility>
#include <vector>

namespace lockstep::testing {
namespace {

constexpr std::size_t stack_bytes = 256 << 10;
constexpr std::size_t guard_bytes = 4 << 10;

/// Stacks without a fiber. A new stack costs three system calls.
std::vector<void*>& unused_stacks() {
  static std::vector<void*> stacks;
  return stacks;
}

void* take_stack() {
  auto& unused = unused_stacks();
  if (!unused.empty()) {
    auto* stack = unused.back();
    unused.pop_back();
    return stack;
  }
  auto* stack = ::mmap(nullptr, stack_bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (stack == MAP_FAILED || ::mprotect(stack, guard_bytes, PROT_NONE) != 0) std::abort();
  return stack;
}

}  // namespace

Fiber::Fiber(std::function<void()> body) : body_(std::move(body)), stack_(take_stack()) {
  ::getcontext(&own_);
  own_.uc_stack.ss_sp = stack_;
  own_.uc_stack.ss_size = stack_bytes;
  own_.uc_link = nullptr;
  const auto address = reinterpret_cast<std::uintptr_t>(this);
  ::makecontext(&own_, reinterpret_cast<void (*)()>(&Fiber::enter), 2,
                static_cast<unsigned>(address >> 32), static_cast<unsigned>(address));
}

Fiber::~Fiber() { unused_stacks().push_back(stack_); }

void Fiber::enter(unsigned high, unsigned low) {
  auto& fiber =
      *reinterpret_cast<Fiber*>(static_cast<std::uintptr_t>(high) << 32 | std::uintptr_t{low});
  fiber.body_();
  fiber.ended_ = true;
  fiber.suspend();
}

void Fiber::swap_exceptions() {
  std::swap(exceptions_, *reinterpret_cast<Exceptions*>(abi::__cxa_get_globals()));
}

void Fiber::resume() {
  swap_exceptions();
  ::swapcontext(&caller_, &own_);
  swap_exceptions();
}

void Fiber::suspend() { ::swapcontext(&own_, &caller_); }

}  // namespace lockstep::testing
