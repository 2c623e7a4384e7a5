#include "plan/forecast.h"

#include <algorithm>

#include "core/text.h"
#include "lockstep/error.h"
#include "lockstep/types.h"
#include "plan/exchange_cost.h"

namespace lockstep::inline v0_2::plan {
namespace {

constexpr double forward = 1.0 / 3;

/// The network, which sends one bucket after another while the processor computes backward and
/// afterwards.
class Network {
 public:
  explicit Network(double overlap) : overlap_(overlap) {}

  /// Something to carry for so many seconds, from now on.
  void add(double seconds) { waiting_ += seconds; }
  /// The processor goes on for so many seconds.
  void compute(double seconds) {
    const double carried = std::min(waiting_, seconds * overlap_);
    waiting_ -= carried;
    hidden_ += carried;
  }
  double hidden() const { return hidden_; }
  double waiting() const { return waiting_; }

 private:
  double overlap_;
  double waiting_ = 0;
  double hidden_ = 0;
};

double multiplications(const std::vector<Layer>& layers) {
  double sum = 0;
  for (const auto& layer : layers) sum += layer.multiplications();
  return sum;
}

}  // namespace

std::vector<std::vector<Layer>> buckets(const Model& model) {
  constexpr std::size_t element = 4;
  constexpr BucketCaps caps;
  std::vector<std::vector<Layer>> all;
  std::size_t bytes = 0;
  for (const auto& layer : model.layers) {
    const std::size_t enough = all.size() < 2 ? caps.first : caps.rest;
    const std::size_t more = layer.parameters() * element;
    if (all.empty() || bytes >= enough || bytes + more > caps.rest) {
      all.emplace_back();
      bytes = 0;
    }
    all.back().push_back(layer);
    bytes += more;
  }
  return all;
}

Forecast forecast(const Setting& setting, const Strategy& strategy) {
  if (strategy.needs_shapes() && !setting.model.shapes_known) {
    throw InvalidArgument(detail::concat("plan: got strategy ", strategy.text,
                                         " with --parameters, whose shapes nobody knows; expected "
                                         "--model"));
  }
  const auto placement = Placement::uniform(setting.nodes, setting.ranks_per_node);
  const double backward = (1 - forward) * setting.compute;
  const auto leaving = buckets(setting.model);
  double all_multiplications = 0;
  for (const auto& bucket : leaving) all_multiplications += multiplications(bucket);

  Forecast result{.strategy = strategy};
  Network network(setting.overlap);
  for (const auto& bucket : leaving) {
    if (!strategy.after_step()) {
      network.compute(backward * multiplications(bucket) / all_multiplications);
    }
    const auto one = exchange(strategy, bucket, placement);
    const double between = setting.costs.between_hosts(one.traffic);
    const double own = setting.costs.of_processor(one.traffic, placement);
    network.compute(strategy.after_step() ? 0 : one.coding + own);
    network.add(between);
    result.coding += one.coding;
    result.memory += own;
    result.network += between;
    result.sent += one.traffic.sent;
  }
  result.hidden = network.hidden();
  result.step = setting.compute + result.coding + result.memory + network.waiting();
  result.efficiency = setting.compute / result.step;
  result.throughput = placement.ranks * setting.batch / result.step;
  return result;
}

std::vector<Forecast> forecasts(const Setting& setting, const std::vector<Strategy>& strategies) {
  std::vector<Forecast> all;
  for (const auto& strategy : strategies) all.push_back(forecast(setting, strategy));
  std::ranges::stable_sort(all, {}, &Forecast::step);
  return all;
}

}  // namespace lockstep::plan
