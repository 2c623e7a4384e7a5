#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "lockstep/comm/mpi/mpi.h"
#include "lockstep/core/version_tag.h"

namespace lockstep::mpi {

/// What a rank tells all others when it joins.
struct Card {
  std::uint64_t host;  ///< a digest of what its host is known by
  std::int64_t algorithm;
  detail::VersionTag version;
};

Card card_of(const std::string& host, Algorithm algorithm);

/// Throws: CommError when ranks run other versions of Lockstep; InvalidArgument when they were told
/// other algorithms. Both name the first rank that differs from rank 0.
void expect_alike(std::span<const Card> by_rank);

}  // namespace lockstep::mpi
