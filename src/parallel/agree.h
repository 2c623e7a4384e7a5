#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include "comm/agreement.h"
#include "core/text.h"
#include "lockstep/error.h"
#include "lockstep/group.h"
#include "lockstep/work.h"

namespace lockstep::inline v0_2::detail {

/// An integer and its complement. Their bytewise maxima over ranks are complements of each other
/// if, and only if, all ranks have the same integer. Zeros in place of both, of a rank that has no
/// integer, do not change the maxima of the others.
template <class Integer>
struct Compared {
  explicit Compared(Integer own = 0) : value(own), complement(static_cast<Integer>(~own)) {}
  /// Of a rank that has no integer.
  static Compared none() {
    Compared zeros;
    zeros.complement = 0;
    return zeros;
  }
  bool is_equal() const { return static_cast<Integer>(~complement) == value; }

  Integer value;
  Integer complement;
};

/// The bytewise maxima over ranks of a value of a few bytes, by one all_reduce.
template <class T>
class MaxOverRanks {
 public:
  explicit MaxOverRanks(const Group& group)
      : group_(group.host()), bytes_(group_.empty({sizeof(T)}, at::kByte)) {}

  /// Begins the all_reduce; does not block. Ranks: all of the group.
  void begin(const T& own) {
    std::memcpy(bytes_.mutable_data_ptr(), &own, sizeof own);
    work_ = group_.all_reduce(bytes_, ReduceOp::max);
  }
  bool pending() const { return work_.pending(); }
  bool ready() { return work_.ready(); }
  /// Waits for all ranks. The result is the same on every rank.
  T end() {
    work_.wait();
    T all{};
    std::memcpy(static_cast<void*>(&all), bytes_.const_data_ptr(), sizeof all);
    return all;
  }

 private:
  Group group_;
  at::Tensor bytes_;
  Work work_;
};

/// "WHAT rank 1 of 4: " and the parts.
template <class... Parts>
std::string at_rank(std::string_view what, const Group& group, const Parts&... parts) {
  return concat(what, " rank ", group.rank(), " of ", group.size(), ": ", parts...);
}

/// An InvalidArgument with this text.
template <class... Parts>
InvalidArgument invalid_at(std::string_view what, const Group& group, const Parts&... parts) {
  return InvalidArgument(at_rank(what, group, parts...));
}

/// The same of an operation.
template <class... Parts>
InvalidArgument invalid_in(std::string_view operation, const Group& group, const Parts&... parts) {
  return InvalidArgument(at_rank(operation, group, parts...),
                         {.operation = std::string(operation)});
}

/// Checks that all ranks pass the same lines. highest: as difference().
/// Ranks: all of the group.
/// Throws: InvalidArgument, on every rank. It has the first line that differs, and the ranks that
/// pass each variant. The group stays usable.
inline void agree(const Group& group, std::string_view operation,
                  std::span<const std::string> lines, std::int64_t* highest = nullptr) {
  const auto different = difference(group.host().communicator(), lines, highest);
  if (!different) return;
  throw InvalidArgument(
      at_rank(operation, group, "ranks must hold the same model: ", different->text),
      {.rank = different->rank, .operation = std::string(operation)});
}

}  // namespace lockstep::detail
