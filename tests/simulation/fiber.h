#pragma once

#include <cxxabi.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <utility>
#include <vector>

namespace lockstep::testing {

constexpr std::size_t stack_bytes = 256 << 10;
constexpr std::size_t guard_bytes = 4 << 10;

/// Stacks without a fiber. A new stack costs three system calls.
inline std::vector<void*>& unused_stacks() {
  static std::vector<void*> stacks;
  return stacks;
}

inline void* take_stack() {
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

/// A function with a stack of its own, in this thread. A fiber that is destroyed before its
/// function has returned is dropped: its stack is reused without unwinding.
class Fiber {
 public:
  explicit Fiber(std::function<void()> body) : body_(std::move(body)), stack_(take_stack()) {
    ::getcontext(&own_);
    own_.uc_stack.ss_sp = stack_;
    own_.uc_stack.ss_size = stack_bytes;
    own_.uc_link = nullptr;
    const auto address = reinterpret_cast<std::uintptr_t>(this);
    ::makecontext(&own_, reinterpret_cast<void (*)()>(&Fiber::enter), 2,
                  static_cast<unsigned>(address >> 32), static_cast<unsigned>(address));
  }

  ~Fiber() { unused_stacks().push_back(stack_); }
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// Runs the fiber until it calls suspend() or its function returns. Not called in a fiber.
  void resume() {
    swap_exceptions();
    ::swapcontext(&caller_, &own_);
    swap_exceptions();
  }

  /// Returns from resume(). Called in this fiber.
  void suspend() { ::swapcontext(&own_, &caller_); }
  bool ended() const { return ended_; }

 private:
  /// The C++ runtime's record of exceptions that a thread handles (Itanium C++ ABI, 2.2.2).
  struct Exceptions {
    void* caught = nullptr;
    unsigned uncaught = 0;
  };

  static void enter(unsigned high, unsigned low) {
    auto& fiber =
        *reinterpret_cast<Fiber*>(static_cast<std::uintptr_t>(high) << 32 | std::uintptr_t{low});
    fiber.body_();
    fiber.ended_ = true;
    fiber.suspend();
  }

  void swap_exceptions() {
    std::swap(exceptions_, *reinterpret_cast<Exceptions*>(abi::__cxa_get_globals()));
  }

  std::function<void()> body_;
  void* stack_;
  ucontext_t own_;
  ucontext_t caller_;
  Exceptions exceptions_;
  bool ended_ = false;
};

}  // namespace lockstep::testing
