#pragma once

#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/data.h>
#include <torch/types.h>

#include <algorithm>
#include <cstdint>
#include <future>
#include <limits>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/text.h"
#include "lockstep/denormals.h"
#include "lockstep/prefetch_loader.h"
#include "lockstep/samplers.h"

// Which threads of a rank flush denormals, told by what they compute.

namespace lockstep::testing {

/// The share of elements that are zero once they have been multiplied by 2^60. They are denormals,
/// made of bits, since arithmetic may flush them.
inline double zeros_of_product(std::int64_t count) {
  const auto denormals = torch::full({count}, 1 << 20, torch::kInt).view(torch::kFloat);
  return (denormals * 0x1p60f).eq(0).to(torch::kDouble).mean().item<double>();
}

/// Whether the calling thread computes zero of a denormal.
inline bool computes_zero() {
  volatile float value = std::numeric_limits<float>::denorm_min();
  value = value * 0x1p60f;
  return value == 0;
}

/// The thread of the innermost of nested backwards, and whether it computed zero of a denormal.
struct SeenByBackward {
  std::thread::id thread;
  bool computed_zero = false;
};

/// Its backward runs another one inside, so many times.
struct Nested : torch::autograd::Function<Nested> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            std::int64_t depth, std::int64_t seen) {
    context->saved_data["depth"] = depth;
    context->saved_data["seen"] = seen;
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto depth = context->saved_data["depth"].toInt();
    const auto seen = context->saved_data["seen"].toInt();
    if (depth > 0) {
      const at::AutoGradMode enabled(true);
      auto x = torch::ones({1}, torch::requires_grad());
      Nested::apply(x, depth - 1, seen).sum().backward();
    } else {
      *reinterpret_cast<SeenByBackward*>(seen) = {std::this_thread::get_id(), computes_zero()};
    }
    return {gradients[0], at::Tensor(), at::Tensor()};
  }
};

inline SeenByBackward backward(std::int64_t depth) {
  SeenByBackward seen;
  auto x = torch::ones({1}, torch::requires_grad());
  Nested::apply(x, depth, reinterpret_cast<std::int64_t>(&seen)).sum().backward();
  return seen;
}

/// Its samples say whether the thread that read them computes zero of a denormal.
class ReadBy : public torch::data::datasets::BatchDataset<ReadBy, std::vector<bool>> {
 public:
  std::vector<bool> get_batch(c10::ArrayRef<std::size_t> indices) override {
    return std::vector<bool>(indices.size(), computes_zero());
  }
  std::optional<std::size_t> size() const override { return 16; }
};

template <class Loader>
double zeros_of_batches(Loader& loader) {
  double zeros = 0;
  std::size_t samples = 0;
  for (const auto& batch : loader) {
    zeros += static_cast<double>(std::count(batch.begin(), batch.end(), true));
    samples += batch.size();
  }
  return zeros / static_cast<double>(samples);
}

/// Shares of the work of each kind of thread, as "main 1, OpenMP 1, …".
inline std::string text_of(double own, double open_mp, double autograd, double prefetch,
                           double loader) {
  return lockstep::detail::concat("main ", own, ", OpenMP ", open_mp, ", autograd ", autograd,
                                  ", PrefetchLoader ", prefetch, ", DataLoader ", loader);
}
inline std::string all_threads(double flushed) {
  return text_of(flushed, flushed, flushed, flushed, flushed);
}

/// The shares that are flushed.
inline std::string what_is_flushed() {
  const double own = computes_zero();
  // More than one thread takes part in operations on so many elements.
  const double open_mp = zeros_of_product(1 << 20);
  const double autograd = backward(0).computed_zero;
  const torch::data::samplers::SequentialSampler sampler(16);
  PrefetchLoader prefetch(ReadBy(), sampler, {.batch_size = 2, .workers = 2});
  const double prefetched = zeros_of_batches(prefetch);
  const auto loader = torch::data::make_data_loader(ReadBy(), sampler,
                                                    torch::data::DataLoaderOptions(2).workers(2));
  return text_of(own, open_mp, autograd, prefetched, zeros_of_batches(*loader));
}

/// The same of threads that belong to the process and not to the thread that it is called in.
inline std::string what_the_process_flushes() {
  // Deeper than LibTorch lets one thread nest backwards.
  const auto deep = backward(100);
  std::promise<bool> launched;
  at::launch([&] { launched.set_value(computes_zero()); });
  return lockstep::detail::concat("nested autograd ",
                                  deep.thread == std::this_thread::get_id() ? "in its caller " : "",
                                  deep.computed_zero, ", inter-op ", launched.get_future().get());
}

}  // namespace lockstep::testing
