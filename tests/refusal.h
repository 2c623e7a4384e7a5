#pragma once

#include <ATen/ops/ones.h>

#include <string>

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

}  // namespace lockstep::testing
