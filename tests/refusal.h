#pragma once

#include <ATen/ops/ones.h>

#include <cstddef>
#include <exception>
#include <string>
#include <vector>

#include "lockstep/error.h"
#include "lockstep/group.h"
#include "tests/matchers.h"
#include "tests/message_of.h"

namespace lockstep::testing {

/// The message of the InvalidArgument that fn throws; "" if it throws nothing.
template <class Fn>
std::string refusal(const Fn& fn) {
  return message_of<InvalidArgument>(fn);
}

/// A refusal leaves the group as it was.
inline void expect_usable(const Group& world) {
  const auto one = at::ones({1}, at::TensorOptions().device(world.device()));
  world.all_reduce(one).wait();
  EXPECT_EQ(one.item<float>(), static_cast<float>(world.size()));
}

/// Every rank's fn is refused with a message that has the text, and leaves the group usable.
template <class Fn>
void expect_refused(const Group& world, const std::string& text, const Fn& fn) {
  EXPECT_THAT(refusal(fn), HasSubstr(text));
  expect_usable(world);
}

/// The error that fn raises on each rank of a world, which run starts with what each rank calls.
template <class Run, class Fn>
std::vector<std::string> errors_in(int ranks, const Run& run, const Fn& fn) {
  std::vector<std::string> errors(static_cast<std::size_t>(ranks));
  try {
    run([&](const Group& world) {
      try {
        fn(world);
      } catch (const std::exception& error) {
        errors[static_cast<std::size_t>(world.rank())] = error.what();
        throw;
      }
    });
  } catch (const std::exception&) {
    // The first of them once more.
  }
  return errors;
}

}  // namespace lockstep::testing
