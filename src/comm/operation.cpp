#include "comm/operation.h"

#include <numeric>

#include "core/text.h"
#include "lockstep/types.h"

namespace lockstep::inline v0_2 {

std::string_view name(Collective collective) {
  switch (collective) {
    case Collective::all_reduce:
      return "all_reduce";
    case Collective::broadcast:
      return "broadcast";
    case Collective::all_gather:
      return "all_gather";
    case Collective::reduce_scatter:
      return "reduce_scatter";
    case Collective::gather:
      return "gather";
    case Collective::scatter:
      return "scatter";
    case Collective::all_to_all:
      return "all_to_all";
    case Collective::send:
      return "send";
    case Collective::recv:
      return "recv";
    case Collective::barrier:
      return "barrier";
  }
  return "unknown";
}

std::size_t Operation::part_begin(int rank) const {
  if (counts.empty()) return count * static_cast<std::size_t>(rank);
  return std::accumulate(counts.begin(), counts.begin() + rank, std::size_t{0});
}

std::string Operation::label() const {
  if (collective == Collective::barrier && sequence == 0) return "init";
  if (collective == Collective::send) return detail::concat("send #", sequence, " to rank ", peer);
  if (collective == Collective::recv)
    return detail::concat("recv #", sequence, " from rank ", peer);
  return detail::concat(name(collective), " #", sequence);
}

}  // namespace lockstep
