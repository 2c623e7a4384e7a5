#pragma once

#include <cstddef>
#include <string_view>

#include "lockstep/denormals.h"

namespace lockstep::inline v0_2::detail {

/// Whether this build can flush denormals.
inline constexpr bool can_flush_denormals =
#if defined(__x86_64__) || defined(__aarch64__)
    true;
#else
    false;
#endif

/// "flushed" or "kept".
std::string_view denormals_text(bool flushed);

/// Throws: InvalidArgument if a rank has another setting than rank 0, naming both settings and the
/// remedy.
void expect_same_denormals(std::string_view where, std::size_t rank, bool flushed,
                           bool flushed_on_rank_0);

/// Makes the calling thread flush or keep denormals until the end of the scope.
class DenormalsGuard {
 public:
  explicit DenormalsGuard(bool flush) : before_(flushes_denormals()) { flush_denormals(flush); }
  ~DenormalsGuard() { flush_denormals(before_); }
  DenormalsGuard(const DenormalsGuard&) = delete;
  DenormalsGuard& operator=(const DenormalsGuard&) = delete;

 private:
  bool before_;
};

}  // namespace lockstep::detail
