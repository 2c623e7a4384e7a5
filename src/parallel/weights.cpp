#include "parallel/weights.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <utility>

#include "comm/communicator.h"
#include "core/text.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::detail {

Weights::Weights(const Group& group)
    : group_(group.host()),
      mine_(group_.empty({1}, at::kDouble)),
      all_(group_.empty({group.size()}, at::kDouble)) {}

void Weights::set(double weight) {
  work_.wait();  // of an earlier set(), which this one replaces
  *mine_.data_ptr<double>() = weight;
  work_ = group_.all_gather(all_, mine_);
  are_set_ = true;
}

void Weights::check() {
  if (!are_set_) return;
  work_.wait();
  const std::span weights(all_.data_ptr<double>(), static_cast<std::size_t>(group_.size()));
  const auto refuse = [&](int rank, auto&&... what) {
    are_set_ = false;
    throw InvalidArgument(
        concat("weight rank ", group_.rank(), " of ", group_.size(), ": got ", what...),
        {.rank = rank, .operation = "weight"});
  };
  for (std::size_t rank = 0; rank < weights.size(); ++rank) {
    if (std::isfinite(weights[rank]) && weights[rank] >= 0) continue;
    refuse(group_.communicator().world_rank(static_cast<int>(rank)), weights[rank], " on rank ",
           rank, ", expected 0 or more");
  }
  if (std::ranges::all_of(weights, [](double weight) { return weight == 0; })) {
    refuse(-1, "0 on every rank, expected more on at least one");
  }
}

double Weights::take_factor() {
  check();
  if (!std::exchange(are_set_, false)) return 1;
  const std::span weights(all_.data_ptr<double>(), static_cast<std::size_t>(group_.size()));
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  const double mine = weights[static_cast<std::size_t>(group_.rank())];
  const bool equal = std::all_of(weights.begin(), weights.end(),
                                 [&](double weight) { return weight == weights.front(); });
  return equal ? 1 : mine / sum * group_.size();
}

}  // namespace lockstep::detail
