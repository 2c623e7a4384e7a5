#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "comm/communicator.h"
#include "lockstep/work.h"

namespace lockstep::inline v0_2::averaging {

/// Memory of a group for a message or a residual.
class Buffer {
 public:
  Buffer() = default;  ///< no memory
  /// Not all zero: the group reuses memory.
  Buffer(Communicator& group, std::size_t bytes);

  bool defined() const { return memory_ != nullptr; }
  std::size_t bytes() const { return bytes_; }
  std::byte* data() const { return memory_.get(); }
  const std::shared_ptr<std::byte>& memory() const { return memory_; }
  template <class T>
  std::span<T> as() const {
    return {reinterpret_cast<T*>(memory_.get()), bytes_ / sizeof(T)};
  }
  void fill_with_zeros() const;

 private:
  std::shared_ptr<std::byte> memory_;
  std::size_t bytes_ = 0;
};

// Collectives of bytes. The buffers live at least as long as the operation.

/// output = all ranks' inputs in rank order.
/// Shapes: output has the bytes of all inputs.
Work all_gather(Communicator& group, const Buffer& output, const Buffer& input);
/// The same with the first bytes[r] of rank r's input.
/// Shapes: output has the sum of bytes or more.
Work all_gather(Communicator& group, const Buffer& output, const Buffer& input,
                std::span<const std::size_t> bytes);
/// Part r of output = the part of rank r's input for this rank.
/// Shapes: both have the same bytes, a multiple of the number of ranks.
Work all_to_all(Communicator& group, const Buffer& output, const Buffer& input);

}  // namespace lockstep::averaging
