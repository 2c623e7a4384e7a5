#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "comm/mpi/mpi.h"
#include "core/version_tag.h"

namespace lockstep::inline v0_2::mpi {

/// A rank's message to all others when it joins.
struct JoinRecord {
  std::uint64_t host;  ///< a digest of what its host is known by
  std::int64_t algorithm;
  std::int64_t flushes_denormals;  ///< 0 or 1
  detail::VersionTag version;
};

/// Of the calling rank.
JoinRecord join_record_of(const std::string& host, Algorithm algorithm);

/// Throws: CommError when ranks run other versions of Lockstep; InvalidArgument when they have
/// other algorithms, or when some flush denormals and others keep them. All name the first rank
/// that differs from rank 0.
void expect_alike(std::span<const JoinRecord> by_rank);

}  // namespace lockstep::mpi
