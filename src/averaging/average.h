#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "comm/communicator.h"
#include "lockstep/averages.h"
#include "lockstep/error.h"
#include "lockstep/exchange_task.h"
#include "lockstep/types.h"
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

/// Elements in memory that are averaged together, in place.
struct Elements {
  void* data;
  std::size_t count;  ///< with the padding between arrays
  DType dtype;
  std::shared_ptr<const void> owner = {};  ///< keeps the memory, if it is not the caller's

  template <class T>
  std::span<T> as() const {
    return {static_cast<T*>(data), count};
  }
};

/// The arrays whose elements are averaged. The same on all ranks.
struct Arrays {
  std::size_t numel;  ///< elements of all arrays, without the padding between them
  /// The name of the array that has an element, for error texts: "parameter fc.weight".
  std::function<std::string(std::size_t element)> name_at;
  /// What the caller can do if the strategy does not carry the dtype.
  std::string_view remedy = "choose another strategy, or convert them";
};

/// The elements and arrays of one average, and the group whose ranks average them.
struct Averaged {
  Elements elements;
  Arrays arrays;
  Communicator& group;
};

/// The average of elements over ranks by one of the strategies of averages.h, with the state that
/// it keeps between steps.
class Average {
 public:
  Average() = default;
  /// For averages that reject numbers that are not finite, or have error feedback.
  Average(bool error_feedback, const Averaged& averaged);
  virtual ~Average() = default;

  /// The exchange of a step: elements = their average, the same on every rank. step is the number
  /// of earlier exchanges. The group outlives the coroutine.
  /// Ranks: all.
  virtual ExchangeTask exchange(std::int64_t step, Elements elements, Communicator& group) = 0;

  /// Whether exchange() issues exactly one all_reduce. Such an average has exchange_part().
  virtual bool is_all_reduce() const { return false; }

  /// exchange() for one part: part = this rank's part of the average, and the other elements are
  /// unspecified. The parts of all ranks in rank order have the same length and make up the
  /// elements; the last ones may be longer than what is left. Ranks: all.
  virtual ExchangeTask exchange_part(std::int64_t /*step*/, Elements /*elements*/,
                                     Elements /*part*/, Communicator& /*group*/) {
    return {};
  }

  /// The elements that this rank has not sent yet, zero at first: error feedback, in the order and
  /// dtype of the elements. Has no memory without error feedback.
  const Buffer& residual() const { return residual_; }

 protected:
  Arrays arrays_ = {};
  Buffer residual_;
};

// The average by a strategy, for elements that lie in memory of the group, or elsewhere.
// Throws: InvalidArgument as check() of the strategy does, or for elements of another dtype.
std::unique_ptr<Average> create(const AllReduce& strategy, const Averaged& averaged);
std::unique_ptr<Average> create(const Fp16& strategy, const Averaged& averaged);
std::unique_ptr<Average> create(const Bf16& strategy, const Averaged& averaged);
std::unique_ptr<Average> create(const Int8& strategy, const Averaged& averaged);
std::unique_ptr<Average> create(const TopK& strategy, const Averaged& averaged);
std::unique_ptr<Average> create(const Threshold& strategy, const Averaged& averaged);

/// The optional arguments of an operation on the elements.
Issue issue_of(const Elements& elements);

/// The error of all ranks about elements of one rank of the group that are not finite. On the other
/// ranks it repeats that rank's error, so that the launcher reports that rank.
InvalidArgument not_finite_error(const std::string& text, int rank, const Communicator& group);

/// Throws it about an element of a rank of the group that is not finite. Every rank
/// must call it with the same arguments; the group stays usable then.
[[noreturn]] void refuse_not_finite(std::string_view strategy, const std::string& name, int rank,
                                    const Communicator& group);

/// Throws: InvalidArgument when the elements' dtype is not among the supported ones.
void expect_dtype(std::string_view strategy, const Averaged& averaged,
                  std::initializer_list<DType> supported);

}  // namespace lockstep::averaging
