#include "parallel/weights.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>

#include "core/text.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::detail {

Weights::Weights(const Group& group)
    : group_(group),
      mine_(group.empty({1}, at::kDouble)),
      all_(group.empty({group.size()}, at::kDouble)) {}

void Weights::set(double weight) {
  work_.wait();  // set twice: the later one counts
  *mine_.data_ptr<double>() = weight;
  work_ = group_.all_gather(all_, mine_);
}

double Weights::take_factor() {
  if (!work_.pending()) return 1;
  work_.wait();
  const std::span weights(all_.data_ptr<double>(), static_cast<std::size_t>(group_.size()));
  const auto refuse = [&](auto&&... what) {
    throw InvalidArgument(
        concat("weight rank ", group_.rank(), " of ", group_.size(), ": got ", what...));
  };
  for (std::size_t rank = 0; rank < weights.size(); ++rank) {
    if (std::isfinite(weights[rank]) && weights[rank] >= 0) continue;
    refuse(weights[rank], " on rank ", rank, ", expected 0 or more");
  }
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  if (sum == 0) refuse("0 on every rank, expected more on at least one");
  const double mine = weights[static_cast<std::size_t>(group_.rank())];
  const bool equal = std::all_of(weights.begin(), weights.end(),
                                 [&](double weight) { return weight == weights.front(); });
  return equal ? 1 : mine / sum * group_.size();
}

}  // namespace lockstep::detail
