#include <benchmark/benchmark.h>

#include <cmath>
#include <cstddef>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "bench/machine.h"
#include "kernels/quantize.h"
#include "kernels/reduce.h"
#include "kernels/select_largest.h"

// Compare with read_pass of the same size: a sum that is as fast as memory. Selections take 1 %.
namespace lockstep::inline v0_2::kernels {
namespace {

/// Inputs of selections. A threshold estimated from samples may be wrong for each kind but the
/// first.
enum class SelectionData { normal, ties, zeros, ascending, sparse };
constexpr const char* names[] = {"normal", "heavy ties", "all zeros", "sorted", "already sparse"};

/// Normal values, those rounded to whole numbers, nothing, the smallest first, or 1 at one place in
/// 200 and 0 elsewhere.
std::vector<float> selection_data(SelectionData kind, std::size_t count) {
  std::mt19937 random(1);
  std::normal_distribution<float> distribution;
  const auto value = [&](std::size_t i) -> float {
    switch (kind) {
      case SelectionData::normal:
        return distribution(random);
      case SelectionData::ties:
        return std::round(distribution(random));
      case SelectionData::ascending:
        return static_cast<float>(i);
      case SelectionData::sparse:
        return random() % 200 == 0 ? 1.0f : 0.0f;
      default:
        return 0;
    }
  };
  std::vector<float> data(count);
  for (std::size_t i = 0; i < count; ++i) data[i] = value(i);
  return data;
}

constexpr auto normal = SelectionData::normal;

void read_pass(benchmark::State& state) {
  const auto data = selection_data(normal, static_cast<std::size_t>(state.range(0)));
  for (auto _ : state) {
    benchmark::DoNotOptimize(bench::read_pass(data));
  }
}

struct Selected {
  explicit Selected(std::size_t k) : indices(k + select_slack), values(k + select_slack) {}
  Picks<float> picks() { return {indices, values}; }
  Picks<float> picks(std::size_t k) {
    return {std::span(indices).first(k), std::span(values).first(k)};
  }
  std::vector<std::uint32_t> indices;
  std::vector<float> values;
};

void top(benchmark::State& state) {
  state.SetLabel(names[state.range(1)]);
  const auto data = selection_data(static_cast<SelectionData>(state.range(1)),
                                   static_cast<std::size_t>(state.range(0)));
  const std::size_t k = data.size() / 100;
  SelectSpace<float> space(k);
  Selected selected(k);
  for (auto _ : state) select_top<float>(data, space, selected.picks(k));
}

/// Once with what was sent taken out of the residual again, as error feedback does.
void move_and_top(benchmark::State& state) {
  const auto data = selection_data(normal, static_cast<std::size_t>(state.range(0)));
  auto gradient = data;
  auto residual = data;
  const std::size_t k = data.size() / 100;
  SelectSpace<float> space(k);
  Selected selected(k);
  for (auto _ : state) {
    move_and_select_top<float>(gradient, residual, space, selected.picks(k));
    const auto picks = selected.picks(k);
    for (const auto index : picks.indices) residual[index] = 0;
    scatter_add<float>(gradient, picks.indices, picks.values, 0.5f);
  }
}

void above(benchmark::State& state) {
  const auto data = selection_data(normal, static_cast<std::size_t>(state.range(0)));
  Selected selected(data.size());
  for (auto _ : state) {
    // About 1 % of normal values.
    benchmark::DoNotOptimize(select_above<float>(data, 2.576f, selected.picks()));
  }
}

void reduce_wire(benchmark::State& state, DType dtype) {
  auto a = selection_data(normal, static_cast<std::size_t>(state.range(0)));
  auto b = a;
  const std::byte* inputs[] = {reinterpret_cast<std::byte*>(a.data()),
                               reinterpret_cast<std::byte*>(b.data())};
  std::byte* outputs[] = {reinterpret_cast<std::byte*>(a.data()),
                          reinterpret_cast<std::byte*>(b.data())};
  for (auto _ : state) {
    reduce_rounded({.dtype = dtype, .predivide = true}, ReduceOp::avg, inputs, outputs, a.size());
  }
}

void quantize_int8(benchmark::State& state) {
  const auto data = selection_data(normal, static_cast<std::size_t>(state.range(0)));
  std::vector<QuantizedChunk> chunks(quantized_chunks(data.size()));
  for (auto _ : state) quantize(data, chunks);
}

void quantize_int8_with_feedback(benchmark::State& state) {
  const auto data = selection_data(normal, static_cast<std::size_t>(state.range(0)));
  std::vector<float> residual(data.size());
  std::vector<QuantizedChunk> chunks(quantized_chunks(data.size()));
  for (auto _ : state) quantize_with_feedback(data, residual, chunks);
}

void dequantize_int8(benchmark::State& state) {
  auto data = selection_data(normal, static_cast<std::size_t>(state.range(0)));
  std::vector<QuantizedChunk> chunks(quantized_chunks(data.size()));
  quantize(data, chunks);
  for (auto _ : state) dequantize(chunks, data);
}

constexpr std::int64_t million = 1'000'000;

BENCHMARK(read_pass)->Arg(million)->Arg(25 * million)->Unit(benchmark::kMicrosecond);
BENCHMARK(top)
    ->ArgsProduct({{million, 25 * million}, {0, 1, 2, 3, 4}})
    ->Unit(benchmark::kMicrosecond);
BENCHMARK(move_and_top)->Arg(million)->Arg(25 * million)->Unit(benchmark::kMicrosecond);
BENCHMARK(above)->Arg(million)->Arg(25 * million)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(reduce_wire, float16, DType::f16)->Arg(million)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(reduce_wire, bfloat16, DType::bf16)->Arg(million)->Unit(benchmark::kMicrosecond);
BENCHMARK(quantize_int8)->Arg(25 * million)->Unit(benchmark::kMicrosecond);
BENCHMARK(quantize_int8_with_feedback)->Arg(25 * million)->Unit(benchmark::kMicrosecond);
BENCHMARK(dequantize_int8)->Arg(25 * million)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace lockstep::kernels
