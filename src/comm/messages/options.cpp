#include "comm/messages/options.h"

#include "comm/cost/cost.h"
#include "core/enum_names.h"
#include "core/numeric/digest.h"
#include "core/system/denormals_guard.h"
#include "core/text.h"
#include "lockstep/denormals.h"
#include "lockstep/error.h"
#include "lockstep/version.h"

namespace lockstep::inline v0_2::messages {
namespace {

constexpr detail::EnumNames<Algorithm::ring> algorithms("auto", "direct", "ring");

}  // namespace

std::string_view name(Algorithm algorithm) { return algorithms.of(algorithm); }

Algorithm parse_algorithm(std::string_view text, std::string_view what) {
  return algorithms.parse(what, text);
}

Algorithm cheapest(const Placement& placement, std::size_t bytes) {
  const Costs costs;
  const double length = static_cast<double>(bytes);
  return costs.seconds(mpi_ring(placement, length), placement) <
                 costs.seconds(mpi_direct(placement, length), placement)
             ? Algorithm::ring
             : Algorithm::direct;
}

JoinRecord join_record_of(const std::string& host, Algorithm algorithm) {
  JoinRecord record{.host = detail::digest(std::as_bytes(std::span(host))),
                    .algorithm = static_cast<std::int64_t>(algorithm),
                    .flushes_denormals = flushes_denormals() ? 1 : 0,
                    .version = {}};
  control::set_text(record.version, version());
  return record;
}

void expect_alike(std::string_view backend, std::span<const JoinRecord> by_rank) {
  const auto& first = by_rank.front();
  for (std::size_t rank = 1; rank < by_rank.size(); ++rank) {
    const auto& join_record = by_rank[rank];
    if (join_record.version != first.version) {
      throw CommError(detail::concat(backend, ": the version differs between ranks: rank ", rank,
                                     " runs Lockstep ", join_record.version.data(), ", expected ",
                                     first.version.data(), " as on rank 0"),
                      {.rank = static_cast<int>(rank)});
    }
    if (join_record.algorithm != first.algorithm) {
      throw InvalidArgument(
          detail::concat(backend, ": the algorithm differs between ranks: rank ", rank, " got ",
                         name(static_cast<Algorithm>(join_record.algorithm)), ", expected ",
                         name(static_cast<Algorithm>(first.algorithm)),
                         " as on rank 0; LOCKSTEP_ALGORITHM must be the same on all ranks"));
    }
    detail::expect_same_denormals(detail::concat("init (", backend, ")"), rank,
                                  join_record.flushes_denormals != 0, first.flushes_denormals != 0);
  }
}

}  // namespace lockstep::messages
