#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "averaging/average.h"
#include "averaging/buffer.h"

namespace lockstep::inline v0_2::averaging {

/// Error feedback: the part of the elements that has not been sent yet, zero at first. An average
/// without error feedback has none.
class Unsent {
 public:
  Unsent(bool kept, const Elements& elements, Communicator& group);

  bool kept() const { return values_.defined(); }
  template <class T>
  std::span<T> as() const {
    return values_.as<T>();
  }
  const std::shared_ptr<std::byte>& memory() const { return values_.memory(); }

  /// Sets elements that are not finite to zero. Otherwise a rejected gradient would be sent at the
  /// next step.
  template <class T>
  void drop_not_finite() const;

 private:
  Buffer values_;
};

}  // namespace lockstep::averaging
