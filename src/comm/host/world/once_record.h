#pragma once

#include <cstdint>

#include "comm/atomics.h"

namespace lockstep::inline v0_2::host {

/// The accesses of a record.
struct OnceAccesses {
  detail::Access claim;
  detail::Access publish;
  detail::Access read;
};

inline constexpr OnceAccesses failure_accesses{.claim = detail::Access::failure_claim,
                                               .publish = detail::Access::failure_publish,
                                               .read = detail::Access::failure_read};
inline constexpr OnceAccesses error_accesses{.claim = detail::Access::error_claim,
                                             .publish = detail::Access::error_publish,
                                             .read = detail::Access::error_read};
inline constexpr OnceAccesses end_accesses{.claim = detail::Access::end_claim,
                                           .publish = detail::Access::end_publish,
                                           .read = detail::Access::end_read};

/// The state of a record that many ranks may write, and that only the first one writes. If the
/// writer dies meanwhile, the record never becomes readable.
template <class Atomics, OnceAccesses accesses>
class OnceRecord {
 public:
  /// Calls write(), which writes the data of the record, unless a rank has begun to write before.
  /// Returns whether it was called.
  template <class Write>
  bool write_once(const Write& write) {
    std::uint32_t none = 0;
    if (!state_.compare_exchange_strong(none, writing, Atomics::order(accesses.claim))) {
      return false;
    }
    write();
    state_.store(readable_state, Atomics::order(accesses.publish));
    return true;
  }

  /// Whether the data can be read.
  bool readable() const { return state_.load(Atomics::order(accesses.read)) == readable_state; }

  /// Whether a rank has begun to write.
  bool begun(detail::Access access) const { return state_.load(Atomics::order(access)) != 0; }

 private:
  static constexpr std::uint32_t writing = 1;
  static constexpr std::uint32_t readable_state = 2;

  typename Atomics::template Atomic<std::uint32_t> state_;  ///< 0: nobody has begun to write
};

}  // namespace lockstep::host
