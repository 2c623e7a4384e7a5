#include "parallel/reducer/weights.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "comm/communicator.h"
#include "core/text.h"
#include "lockstep/error.h"
#include "parallel/agree.h"

namespace lockstep::inline v0_2::detail {

Weights::Weights(const Group& group)
    : group_(group.host()),
      mine_(group_.empty({2}, at::kDouble)),
      all_(group_.empty({2 * group.size()}, at::kDouble)) {}

std::span<const Weights::OfRank> Weights::all() const {
  return {static_cast<const OfRank*>(all_.const_data_ptr()),
          static_cast<std::size_t>(group_.size())};
}

void Weights::set(double weight) {
  work_.wait();  // of an earlier set(), whose memory this one uses
  auto& mine = *static_cast<OfRank*>(mine_.mutable_data_ptr());
  if (!are_set_) mine = {.first = weight, .other = weight};
  if (weight != mine.first) mine.other = weight;
  work_ = group_.all_gather(all_, mine_);
  are_set_ = true;
}

void Weights::check() {
  if (!are_set_) return;
  work_.wait();
  const auto weights = all();
  const auto refuse = [&](int rank, auto&&... what) {
    are_set_ = false;
    throw InvalidArgument(at_rank("weight", group_, "got ", what...),
                          {.rank = rank, .operation = "weight"});
  };
  for (std::size_t rank = 0; rank < weights.size(); ++rank) {
    const auto world_rank = group_.communicator().world_rank(static_cast<int>(rank));
    const auto [first, other] = weights[rank];
    if (!std::isfinite(first) || first < 0)
      refuse(world_rank, first, " on rank ", rank, ", expected 0 or more");
    if (other != first) {
      refuse(world_rank, first, " and then ", other, " on rank ", rank,
             " before one exchange, expected one weight for each exchange: to accumulate unequal "
             "micro-batches, divide the sum of each micro-batch's losses by the total of this "
             "rank's samples, and call weight() once, with that total");
    }
  }
  if (std::ranges::all_of(weights, [](const OfRank& weight) { return weight.first == 0; })) {
    refuse(-1, "0 on every rank, expected more on at least one");
  }
}

double Weights::take_factor() {
  check();
  if (!std::exchange(are_set_, false)) return 1;
  const auto weights = all();
  const double sum =
      std::accumulate(weights.begin(), weights.end(), 0.0,
                      [](double part, const OfRank& weight) { return part + weight.first; });
  const double mine = weights[static_cast<std::size_t>(group_.rank())].first;
  const bool equal = std::ranges::all_of(
      weights, [&](const OfRank& weight) { return weight.first == weights.front().first; });
  return equal ? 1 : mine / sum * group_.size();
}

}  // namespace lockstep::detail
