#include "plan/forecast.h"

#include <algorithm>
#include <cmath>
#include <tuple>
#include <variant>

#include "averaging/parse.h"
#include "core/numeric/estimates.h"
#include "core/text.h"
#include "lockstep/error.h"
#include "lockstep/types.h"

namespace lockstep::inline v0_2::plan {
namespace {

using detail::concat;
using Kind = Strategy::Kind;

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
  exchange.traffic = placement.hosts == 1 ? Traffic{.synchronizations = 2,
                                                    .moved = 2 * ranks * ranks * pick_bytes * picks}
                                          : mpi_all_gather(placement, pick_bytes * picks);
  return exchange;
}

Exchange int8(double elements, const Placement& placement) {
  // In place, a rank reads and writes its part of all ranks' buckets only, which coding includes.
  if (placement.hosts == 1)
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

/// The exchange of one of `parts` equal parts of the layers by a strategy that is no all_reduce.
Exchange compressed(const Strategy& strategy, std::span<const Layer> layers, double parts,
                    const Placement& placement) {
  if (strategy.kind == Kind::power_sgd) return power_sgd(strategy.value, layers, parts, placement);
  const double elements = static_cast<double>(parameters(layers)) / parts;
  return strategy.kind == Kind::int8 ? int8(elements, placement)
                                     : top_k(strategy.value, elements, placement);
}

/// Fits the costs of which each equation has first and second times. If that gives no possible
/// pair, fits the second cost only.
void fit_pair(const std::vector<detail::LinearEquation>& equations, double& first, double& second) {
  const detail::LeastSquares fitted(equations);
  if (const auto both = fitted.both(); both && both->first >= 0 && both->second > 0) {
    std::tie(first, second) = *both;
  } else if (const double alone = fitted.second(first); alone > 0) {
    second = alone;
  }
}

}  // namespace

Strategy parse_strategy(std::string_view text) {
  const auto colon = text.find(':');
  const auto name = text.substr(0, colon);
  const auto options = colon == std::string_view::npos ? "" : text.substr(colon + 1);
  const auto strategy = [&](Kind kind, double value = 0) {
    return Strategy{.kind = kind, .value = value, .text = std::string(text)};
  };
  const auto of_whole_number = [&](Kind kind, std::string_view field, std::int64_t whole) {
    detail::Fields fields(name, options);
    fields.read(field, whole);
    fields.finish();
    const auto value = static_cast<double>(whole);
    detail::expect(value >= 1, name, field, value, "a whole number from 1 on");
    return strategy(kind, value);
  };
  if (name == "power_sgd" || name == "powersgd") return of_whole_number(Kind::power_sgd, "rank", 4);
  if (name == "local_sgd") return of_whole_number(Kind::local_sgd, "period", 8);
  if (const auto average = averaging::parse(text)) {
    if (std::holds_alternative<AllReduce>(*average)) return strategy(Kind::fp32);
    if (std::holds_alternative<Int8>(*average)) return strategy(Kind::int8);
    if (const auto* top = std::get_if<TopK>(&*average)) return strategy(Kind::topk, top->ratio);
    if (!std::holds_alternative<Threshold>(*average)) return strategy(Kind::half);
  }
  throw InvalidArgument(concat("plan: got strategy '", text,
                               "', expected one of fp32, fp16, bf16, topk, int8, power_sgd, "
                               "local_sgd; of others the cost depends on the data, or is fp32's"));
}

Exchange exchange(const Strategy& strategy, std::span<const Layer> layers,
                  const Placement& placement) {
  if (placement.ranks < 2) return {};
  const auto elements = static_cast<double>(parameters(layers));
  if (strategy.kind == Kind::fp32) return dense(elements, element_bytes, placement);
  if (strategy.kind == Kind::half) return dense(elements, half_bytes, placement);
  if (strategy.kind == Kind::local_sgd) {
    return {.traffic = 1 / strategy.value * dense(elements, element_bytes, placement).traffic};
  }
  if (placement.hosts < 2 || placement.most_on_host < 2) {
    return compressed(strategy, layers, 1, placement);
  }
  // Ranks of a host sum the elements and share the results in memory. There are as many parts as
  // the host with the fewest ranks has ranks. One rank of each host exchanges each part.
  const double parts = placement.least_on_host;
  Exchange exchange = compressed(strategy, layers, parts, Placement::uniform(placement.hosts, 1));
  exchange.traffic.sent *= parts;
  exchange.traffic.moved *= parts;
  exchange.traffic += host_direct(placement.most_on_host, element_bytes * elements);
  return exchange;
}

std::vector<std::vector<Layer>> buckets(const Model& model) {
  constexpr BucketCaps caps;
  std::vector<std::vector<Layer>> all;
  std::size_t bytes = 0;
  for (const auto& layer : model.layers) {
    const std::size_t enough = all.size() < 2 ? caps.first : caps.rest;
    const std::size_t more = parameters({&layer, 1}) * sizeof(float);
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
  if (strategy.needs_shapes() && !setting.model.shapes_known()) {
    throw InvalidArgument(concat("plan: got strategy ", strategy.text,
                                 " with --parameters, which gives no parameter shapes; "
                                 "expected --model"));
  }
  const auto& keeping = setting.keeping;
  const bool sharded = keeping.shard != Shard::none;
  if ((sharded || keeping.share_memory) && strategy.kind != Kind::fp32) {
    throw InvalidArgument(concat("plan: got strategy ", strategy.text,
                                 " with --shard or "
                                 "--share-memory, expected fp32, the strategy of both"));
  }
  const auto placement = Placement::uniform(keeping.nodes, keeping.ranks_per_node);
  const double before_update = sharded ? 0.5 : 1;  // part of the exchange
  const double backward = 2.0 / 3 * setting.compute;
  const double all_multiplications = multiplications(setting.model.layers);

  Forecast result{.strategy = strategy};
  double waiting = 0;  // time of buckets that the network has not sent
  const auto compute = [&](double seconds) {
    const double carried = std::min(waiting, seconds * setting.overlap);
    waiting -= carried;
    result.hidden += carried;
  };
  for (const auto& bucket : buckets(setting.model)) {
    const auto one = exchange(strategy, bucket, placement);
    const double between = setting.costs.between_hosts(one.traffic);
    const double own = setting.costs.of_processor(one.traffic, placement);
    if (strategy.kind != Kind::local_sgd) {  // which exchanges after the step, not in backward
      compute(backward * multiplications(bucket) / all_multiplications);
      compute(one.coding + before_update * own);
    }
    waiting += before_update * between;
    result.coding += one.coding;
    result.memory += own;
    result.network += between;
    result.sent += one.traffic.sent;
  }
  const double after_update = (1 - before_update) * result.network;
  result.step = setting.compute + result.coding + result.memory + waiting + after_update;
  result.efficiency = setting.compute / result.step;
  result.throughput = static_cast<double>(placement.ranks) * setting.batch / result.step;
  return result;
}

Costs fit(const Costs& costs, const std::vector<Measurement>& measurements) {
  std::vector<detail::LinearEquation> equations;
  const auto add = [&](double first, double second, double seconds) {
    if (seconds > 0) equations.push_back({first, second, seconds});
  };
  Costs fitted = costs;
  for (const auto& one : measurements) {
    if (one.over_network) continue;
    const auto traffic = host_direct(one.ranks, one.bytes);
    const double further = costs.synchronization_rank * std::max(0, one.ranks - 2);
    add(traffic.synchronizations, traffic.moved, one.seconds - traffic.synchronizations * further);
  }
  fit_pair(equations, fitted.synchronization, fitted.moved_byte);
  equations.clear();
  for (const auto& one : measurements) {
    if (!one.over_network) continue;
    const auto placement = Placement::uniform(one.ranks, 1);
    const auto traffic = mpi_direct(placement, one.bytes);
    add(traffic.remote_messages, traffic.sent,
        one.seconds - fitted.of_processor(traffic, placement));
  }
  fit_pair(equations, fitted.remote_message, fitted.sent_byte);
  return fitted;
}

}  // namespace lockstep::plan
