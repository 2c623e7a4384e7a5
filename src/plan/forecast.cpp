#include "plan/forecast.h"

#include <algorithm>
#include <cmath>

#include "core/text.h"
#include "lockstep/error.h"
#include "lockstep/types.h"

namespace lockstep::inline v0_2::plan {
namespace {

// Bytes that are sent.
constexpr double half_bytes = 2;          // a float16 or bfloat16
constexpr double pick_bytes = 8;          // a selected element: value and index
constexpr double code_bytes = 1.0078125;  // an int8 code, and 4 bytes of scale for each 512 codes

// Seconds of a rank's processor, from docs/results.md, "Strategies: time of one bucket".
constexpr double select_time = 1.4e-9;     // for each element: topk without the next line
constexpr double add_time = 5e-9;          // for each selected element of any rank
constexpr double in_place_time = 0.73e-9;  // for each element: int8 in shared memory
constexpr double encode_time = 1.1e-9;     // for each element: int8 over messages
constexpr double multiply_time = 2e-11;    // for each operation of a matrix product

double parameters(std::span<const Layer> layers) {
  double sum = 0;
  for (const auto& layer : layers) sum += static_cast<double>(layer.parameters());
  return sum;
}

bool in_memory(const Placement& placement) { return placement.hosts == 1; }

/// An all_reduce of floats, each of which is sent in wire_bytes between hosts.
Exchange dense(double elements, double wire_bytes, const Placement& placement) {
  auto traffic = hierarchical_all_reduce(placement, element_bytes * elements);
  traffic.sent *= wire_bytes / element_bytes;
  return {.traffic = traffic};
}

Exchange top_k(double ratio, double elements, const Placement& placement) {
  const double picks = std::max(1.0, std::ceil(ratio * elements));
  const double ranks = placement.ranks;
  Exchange exchange{.coding = select_time * elements + add_time * ranks * picks};
  exchange.traffic = in_memory(placement) ? Traffic{.synchronizations = 2,
                                                    .moved = 2 * ranks * ranks * pick_bytes * picks}
                                          : mpi_all_gather(placement, pick_bytes * picks);
  return exchange;
}

Exchange int8(double elements, const Placement& placement) {
  // In place, a rank reads and writes its part of all ranks' buckets only, which coding includes.
  if (in_memory(placement))
    return {.traffic = {.synchronizations = 2}, .coding = in_place_time * elements};
  const double bytes = code_bytes * elements;
  return {.traffic =
              mpi_all_to_all(placement, bytes) + mpi_all_gather(placement, bytes / placement.ranks),
          .coding = encode_time * elements};
}

/// The exchange of one of `parts` equal parts of the layers.
Exchange power_sgd(double rank, std::span<const Layer> layers, double parts,
                   const Placement& placement) {
  double whole = 0, left = 0, right = 0, operations = 0;
  for (const auto& layer : layers) {
    const auto rows = static_cast<double>(layer.rows);
    const auto columns = static_cast<double>(layer.columns);
    whole += static_cast<double>(layer.vectors);
    if ((rows + columns) * rank >= rows * columns) {
      whole += rows * columns;
      continue;
    }
    left += rows * rank;
    right += columns * rank;
    operations += 3 * 2 * rows * columns * rank;  // M·Q, Mᵀ·P, P·Qᵀ
  }
  Exchange exchange{.coding = multiply_time * operations / parts};
  exchange.traffic = hierarchical_all_reduce(placement, element_bytes * (whole + left) / parts);
  if (right > 0)
    exchange.traffic += hierarchical_all_reduce(placement, element_bytes * right / parts);
  return exchange;
}

/// Cost of an exchange in parts, where of(parts, placement) is the cost of one part. Ranks of a
/// host sum the elements and share the results in memory. If hosts have several ranks, there are as
/// many parts as the host with the fewest ranks has ranks. One rank of each host exchanges each
/// part.
template <class Of>
Exchange between_hosts(double elements, const Placement& placement, const Of& of) {
  if (placement.hosts < 2 || placement.most_on_host < 2) return of(1.0, placement);
  const double parts = placement.least_on_host;
  Exchange exchange = of(parts, Placement::uniform(placement.hosts, 1));
  exchange.traffic.sent *= parts;
  exchange.traffic.moved *= parts;
  exchange.traffic += host_direct(placement.most_on_host, element_bytes * elements);
  return exchange;
}

}  // namespace

Exchange exchange(const Strategy& strategy, std::span<const Layer> layers,
                  const Placement& placement) {
  if (placement.ranks < 2) return {};
  const double elements = parameters(layers);
  switch (strategy.kind) {
    case Strategy::Kind::fp32:
      return dense(elements, element_bytes, placement);
    case Strategy::Kind::fp16:
    case Strategy::Kind::bf16:
      return dense(elements, half_bytes, placement);
    case Strategy::Kind::topk:
      return between_hosts(elements, placement, [&](double parts, const Placement& among) {
        return top_k(strategy.value, elements / parts, among);
      });
    case Strategy::Kind::int8:
      return between_hosts(elements, placement, [&](double parts, const Placement& among) {
        return int8(elements / parts, among);
      });
    case Strategy::Kind::power_sgd:
      return between_hosts(elements, placement, [&](double parts, const Placement& among) {
        return power_sgd(strategy.value, layers, parts, among);
      });
    case Strategy::Kind::local_sgd:
      return {.traffic = 1 / strategy.value * dense(elements, element_bytes, placement).traffic};
  }
  return {};
}

namespace {

constexpr double forward = 1.0 / 3;

/// The network, which sends buckets in sequence during backward and after it.
class Network {
 public:
  explicit Network(double overlap) : overlap_(overlap) {}

  /// Adds a bucket that takes this time to send.
  void add(double seconds) { waiting_ += seconds; }
  /// The processor computes for this time, while the network sends.
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
                                         " with --parameters, which gives no parameter shapes; "
                                         "expected --model"));
  }
  if (setting.sharded && strategy.kind != Strategy::Kind::fp32) {
    throw InvalidArgument(detail::concat("plan: --shard: got strategy ", strategy.text,
                                         ", expected fp32, the strategy of sharded updates"));
  }
  const auto placement = Placement::uniform(setting.nodes, setting.ranks_per_node);
  const double before_update = setting.sharded ? 0.5 : 1;  // part of the exchange
  const double backward = (1 - forward) * setting.compute;
  const auto in_order = buckets(setting.model);
  double all_multiplications = 0;
  for (const auto& bucket : in_order) all_multiplications += multiplications(bucket);

  Forecast result{.strategy = strategy};
  Network network(setting.overlap);
  for (const auto& bucket : in_order) {
    if (!strategy.after_step()) {
      network.compute(backward * multiplications(bucket) / all_multiplications);
    }
    const auto one = exchange(strategy, bucket, placement);
    const double between = setting.costs.between_hosts(one.traffic);
    const double own = setting.costs.of_processor(one.traffic, placement);
    network.compute(strategy.after_step() ? 0 : one.coding + before_update * own);
    network.add(before_update * between);
    result.coding += one.coding;
    result.memory += own;
    result.network += between;
    result.sent += one.traffic.sent;
  }
  result.hidden = network.hidden();
  const double after_update = (1 - before_update) * result.network;
  result.step = setting.compute + result.coding + result.memory + network.waiting() + after_update;
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
