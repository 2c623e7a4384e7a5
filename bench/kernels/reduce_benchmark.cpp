#include <benchmark/benchmark.h>

#include <array>
#include <cstddef>
#include <new>
#include <string>
#include <vector>

#include "core/text.h"
#include "kernels/reduce.h"
#include "lockstep/types.h"

// GB/s are bytes read and written: in place on N buffers 2 N times a buffer's bytes. a += b,
// compiled from a plain loop, is what the memory gives.
namespace lockstep {
namespace {

constexpr std::size_t sizes[] = {1 << 10, 64 << 10, 1 << 20, 25 << 20, 100'000'000};

std::vector<std::vector<float>> buffers(std::size_t number, std::size_t bytes) {
  // The values never grow: averages of equal numbers stay what they are.
  return std::vector<std::vector<float>>(number, std::vector<float>(bytes / sizeof(float), 0.0f));
}

void report(benchmark::State& state, std::size_t bytes) {
  state.SetBytesProcessed(static_cast<std::int64_t>(bytes) * state.iterations());
}

void plain_sum(benchmark::State& state, std::size_t bytes) {
  auto data = buffers(2, bytes);
  float* a = data[0].data();
  const float* b = data[1].data();
  const std::size_t count = data[0].size();
  for (auto _ : state) {
    for (std::size_t i = 0; i < count; ++i) a[i] += b[i];
    benchmark::ClobberMemory();
  }
  report(state, 3 * bytes);
}

void reduce_in_place(benchmark::State& state, DType dtype, ReduceOp op, std::size_t ranks,
                     std::size_t bytes) {
  auto data = buffers(ranks, bytes);
  std::vector<std::byte*> outputs;
  for (auto& buffer : data) outputs.push_back(reinterpret_cast<std::byte*>(buffer.data()));
  const std::vector<const std::byte*> inputs(outputs.begin(), outputs.end());
  for (auto _ : state) {
    kernels::reduce(dtype, op, inputs, outputs, bytes / size_of(dtype));
    benchmark::ClobberMemory();
  }
  report(state, 2 * ranks * bytes);
}

void register_all() {
  for (const std::size_t bytes : sizes) {
    benchmark::RegisterBenchmark(detail::concat("a_plus_b/", bytes).c_str(),
                                 [bytes](benchmark::State& state) { plain_sum(state, bytes); });
    for (const std::size_t ranks : {2, 4, 8}) {
      benchmark::RegisterBenchmark(detail::concat("reduce/float32/avg/", ranks, "/", bytes).c_str(),
                                   [=](benchmark::State& state) {
                                     reduce_in_place(state, DType::f32, ReduceOp::avg, ranks,
                                                     bytes);
                                   });
    }
  }
  for (const DType dtype : all_dtypes) {
    for (const ReduceOp op : all_reduce_ops) {
      if (!has_reduction(dtype, op)) continue;
      benchmark::RegisterBenchmark(
          detail::concat("reduce/", name(dtype), "/", name(op), "/2/", 1 << 20).c_str(),
          [=](benchmark::State& state) { reduce_in_place(state, dtype, op, 2, 1 << 20); });
    }
  }
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  lockstep::register_all();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
