#pragma once

#include <ucontext.h>

#include <functional>

namespace lockstep::testing {

/// A function with a stack of its own, in this thread. A fiber that is destroyed before its
/// function has returned is dropped: its stack is reused without unwinding.
class Fiber {
 public:
  explicit Fiber(std::function<void()> body);
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// Runs the fiber until it calls suspend() or its function returns. Not called in a fiber.
  void resume();
  /// Returns from resume(). Called in this fiber.
  void suspend();
  bool ended() const { return ended_; }

 private:
  /// The C++ runtime's record of exceptions that a thread handles (Itanium C++ ABI, 2.2.2).
  struct Exceptions {
    void* caught = nullptr;
    unsigned uncaught = 0;
  };

  static void enter(unsigned high, unsigned low);
  void swap_exceptions();

  std::function<void()> body_;
  void* stack_;
  ucontext_t own_;
  ucontext_t caller_;
  Exceptions exceptions_;
  bool ended_ = false;
};

}  // namespace lockstep::testing
