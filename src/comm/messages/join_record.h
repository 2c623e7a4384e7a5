#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "comm/messages/algorithm.h"
#include "core/version_tag.h"

namespace lockstep::inline v0_2::messages {

/// The values that ranks exchange when they join the world.
struct JoinRecord {
  std::uint64_t host;  ///< digest of the host id
  std::int64_t algorithm;
  std::int64_t flushes_denormals;  ///< 0 or 1
  detail::VersionTag version;
};

/// The record of the calling rank.
JoinRecord join_record_of(const std::string& host, Algorithm algorithm);

/// Checks that all ranks have the same settings. backend: its name, for error texts.
/// Throws: CommError if ranks run different versions of Lockstep. InvalidArgument if they use
/// different algorithms, or if some flush denormals and others keep them. The message names the
/// first rank that differs from rank 0.
void expect_alike(std::string_view backend, std::span<const JoinRecord> by_rank);

}  // namespace lockstep::messages
