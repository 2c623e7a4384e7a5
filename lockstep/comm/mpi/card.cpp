#include "lockstep/comm/mpi/card.h"

#include <cstddef>

#include "lockstep/core/digest.h"
#include "lockstep/core/error.h"
#include "lockstep/core/text.h"

namespace lockstep::mpi {

Card card_of(const std::string& host, Algorithm algorithm) {
  return {.host = detail::digest(std::as_bytes(std::span(host))),
          .algorithm = static_cast<std::int64_t>(algorithm),
          .version = detail::version_tag()};
}

void expect_alike(std::span<const Card> by_rank) {
  const auto& first = by_rank.front();
  for (std::size_t rank = 1; rank < by_rank.size(); ++rank) {
    const auto& card = by_rank[rank];
    detail::expect_version("mpi: the version differs between ranks", rank, card.version,
                           first.version);
    if (card.algorithm != first.algorithm) {
      throw InvalidArgument(
          detail::concat("mpi: the algorithm differs between ranks: rank ", rank, " got ",
                         name(static_cast<Algorithm>(card.algorithm)), ", expected ",
                         name(static_cast<Algorithm>(first.algorithm)),
                         " as on rank 0; LOCKSTEP_ALGORITHM must be the same on all ranks"));
    }
  }
}

}  // namespace lockstep::mpi
