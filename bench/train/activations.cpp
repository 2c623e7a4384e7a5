// Measures the memory that recompute() saves and the time that it costs, in a training step of the
// transformer of models.h. The peak is that of the tensors' memory, above the memory between steps.
// Variants: plain; each layer a segment; two segments. Variants take turns, and medians are
// printed. Rank 0 prints one JSON object. Start it with `lockstep run -n N`.

#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>
#include <lockstep/lockstep.h>
#include <torch/nn.h>
#include <torch/optim/sgd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/clock.h"
#include "largest.h"
#include "models.h"

namespace lockstep::bench::activations {
namespace {

using Clock = std::chrono::steady_clock;

/// Counts the bytes of all CPU tensors.
class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    if (bytes == 0) return {nullptr, at::kCPU};
    auto* const block = static_cast<std::byte*>(c10::alloc_cpu(bytes + header));
    std::memcpy(block, &bytes, sizeof(bytes));
    const auto live = live_ += bytes;
    auto peak = peak_.load();
    while (live > peak && !peak_.compare_exchange_weak(peak, live)) {
    }
    // LibTorch requires that data and context are equal.
    return {block + header, block + header, &free, at::kCPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

  /// Sets the peak to what is in use.
  static void begin_peak() { peak_ = live_.load(); }
  static std::size_t live() { return live_; }
  static std::size_t peak() { return peak_; }

 private:
  /// Holds the number of bytes, and keeps LibTorch's alignment.
  static constexpr std::size_t header = 64;

  static void free(void* data) {
    if (data == nullptr) return;
    auto* const block = static_cast<std::byte*>(data) - header;
    std::size_t bytes = 0;
    std::memcpy(&bytes, block, sizeof(bytes));
    live_ -= bytes;
    c10::free_cpu(block);
  }

  static inline std::atomic<std::size_t> live_ = 0;
  static inline std::atomic<std::size_t> peak_ = 0;
};

/// The transformer of models.h, whose layers run in segments of equal length.
struct Transformer : nn::Module {
  explicit Transformer(std::int64_t depth) {
    for (std::int64_t i = 0; i < depth; ++i) {
      layers.emplace_back();
      register_module("layer" + std::to_string(i), layers.back());
    }
    register_module("first", first);
    register_module("last", last);
  }
  at::Tensor forward(at::Tensor x) {
    x = first(x);
    if (segment == 0) return last(run(x, 0, layers.size()).mean(1));
    for (std::size_t begin = 0; begin < layers.size(); begin += segment) {
      const auto end = std::min(begin + segment, layers.size());
      x = lockstep::recompute([=, this](const at::Tensor& y) { return run(y, begin, end); }, x);
    }
    return last(x.mean(1));
  }
  at::Tensor run(at::Tensor x, std::size_t begin, std::size_t end) {
    for (auto i = begin; i < end; ++i) x = layers[i](x);
    return x;
  }
  std::size_t segment = 0;  ///< layers of a segment; 0 does not recompute
  std::vector<Block> layers;
  nn::Linear first{64, BlockImpl::width}, last{BlockImpl::width, 10};
};

struct Settings {
  std::int64_t layers = 6;
  std::int64_t batch_size = 8;
  std::int64_t time = 128;
  int rounds = 5;
};

void measure(const Settings& settings, const lockstep::Group& world) {
  torch::manual_seed(0);
  const auto model = std::make_shared<Transformer>(settings.layers);
  lockstep::DistributedDataParallel ddp(model, world);
  torch::optim::SGD sgd(model->parameters(), 0.01);
  const auto input = torch::rand({settings.batch_size, settings.time, 64});
  const auto target = torch::randint(10, {settings.batch_size}, torch::kLong);
  const auto layers = static_cast<std::size_t>(settings.layers);
  const std::map<std::string, std::size_t> segments = {
      {"plain", 0}, {"each_layer", 1}, {"two_segments", (layers + 1) / 2}};
  std::map<std::string, std::vector<double>> milliseconds, mebibytes;
  for (int round = -1; round < settings.rounds; ++round) {
    for (const auto& [name, segment] : segments) {
      model->segment = segment;
      sgd.zero_grad();
      world.barrier().wait();
      CountingAllocator::begin_peak();
      const auto before = CountingAllocator::live();
      const auto begin = Clock::now();
      torch::nn::functional::cross_entropy(ddp(input), target).backward();
      const std::chrono::duration<double, std::milli> taken = Clock::now() - begin;
      const double slowest = largest(taken.count(), world);
      sgd.step();
      if (round < 0) continue;
      milliseconds[name].push_back(slowest);
      mebibytes[name].push_back(static_cast<double>(CountingAllocator::peak() - before) /
                                (1 << 20));
    }
  }
  if (world.rank() != 0) return;
  nlohmann::ordered_json result = {{"ranks", world.size()},
                                   {"layers", settings.layers},
                                   {"batch_size", settings.batch_size},
                                   {"time", settings.time}};
  for (const auto& [name, segment] : segments) {
    result[name] = {{"peak_mib", median(mebibytes[name])}, {"ms", median(milliseconds[name])}};
  }
  std::cout << result.dump() << std::endl;
}

}  // namespace

int program(int argc, char** argv) {
  Settings settings;
  CLI::App app("Measures the memory and the time of a training step with and without recompute()");
  app.add_option("--layers", settings.layers, "Layers of the transformer")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--batch-size", settings.batch_size, "Samples of a rank")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  app.add_option("--time", settings.time, "Vectors of a sample")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  app.add_option("--rounds", settings.rounds, "Steps of each variant")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  try {
    static CountingAllocator allocator;
    c10::SetCPUAllocator(&allocator, /*priority=*/255);
    measure(settings, lockstep::init({.keep_freed_memory = true}));
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "bench_activations: " << error.what() << std::endl;
    return 1;
  }
}

}  // namespace lockstep::bench::activations
