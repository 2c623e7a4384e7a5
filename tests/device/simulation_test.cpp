#include "tests/device/simulation/simulation.h"

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/device/on_devices.h"

namespace lockstep::simulation {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const at::Device device(device_type(), 0);

const c10::impl::VirtualGuardImpl& guard() {
  install();
  static const c10::impl::VirtualGuardImpl impl(device_type());
  return impl;
}

/// Each test begins and ends with idle streams, and no race but those that it asks for.
class Simulation : public testing::OnSimulation {
 protected:
  Simulation() {
    guard();
    settle();
    take_races();
  }
  ~Simulation() override {
    set_delay(0);
    settle();
    EXPECT_THAT(take_races(), IsEmpty());
  }
  static void settle() { synchronize_all(); }
  static c10::Stream current() { return guard().getStream(device); }
  static c10::Stream other() { return guard().getStreamFromGlobalPool(device); }
  static void order(const c10::Stream& first, const c10::Stream& second) {
    c10::Event event(device_type());
    event.record(first);
    event.block(second);
  }
};

at::Tensor on_device(const at::Tensor& t) { return t.to(device); }

struct Net : torch::nn::Module {
  torch::nn::Conv2d first{torch::nn::Conv2dOptions(1, 8, 3).padding(1)};
  torch::nn::BatchNorm2d norm{8};
  torch::nn::Conv2d second{torch::nn::Conv2dOptions(8, 16, 3).padding(1).stride(2)};
  torch::nn::Linear last{16 * 4 * 4, 10};
  Net() {
    register_module("first", first);
    register_module("norm", norm);
    register_module("second", second);
    register_module("last", last);
  }
  at::Tensor forward(at::Tensor x) {
    x = torch::max_pool2d(torch::relu(norm(first(x))), 2);
    x = torch::gelu(second(x));
    return last(x.flatten(1));
  }
};

/// The losses of the steps, and then the parameters and buffers.
template <class Optimizer, class Options>
std::vector<at::Tensor> train(at::Device where, int steps, Options options) {
  torch::manual_seed(1);
  Net net;
  net.to(where);
  Optimizer optimizer(net.parameters(), options);
  std::vector<at::Tensor> results;
  for (int step = 0; step < steps; ++step) {
    const auto images = at::randn({8, 1, 16, 16}).to(where);
    const auto labels = at::randint(10, {8}, at::kLong).to(where);
    optimizer.zero_grad();
    auto loss = torch::cross_entropy_loss(net.forward(images), labels);
    loss.backward();
    optimizer.step();
    results.push_back(loss.detach());
  }
  for (const auto& p : net.parameters()) results.push_back(p.detach());
  for (const auto& b : net.buffers()) results.push_back(b);
  return results;
}

void expect_equal(const std::vector<at::Tensor>& cpu, const std::vector<at::Tensor>& sim) {
  ASSERT_EQ(cpu.size(), sim.size());
  for (std::size_t i = 0; i < cpu.size(); ++i) {
    EXPECT_EQ(sim[i].device().type(), device_type());
    EXPECT_TRUE(cpu[i].equal(sim[i].cpu())) << "tensor " << i;
  }
}

TEST_F(Simulation, TrainsAsTheCpu) {
  set_delay(20);
  const torch::optim::SGDOptions sgd = torch::optim::SGDOptions(0.1).momentum(0.9);
  expect_equal(train<torch::optim::SGD>(at::kCPU, 5, sgd),
               train<torch::optim::SGD>(device, 5, sgd));
  const torch::optim::AdamWOptions adamw(0.01);
  expect_equal(train<torch::optim::AdamW>(at::kCPU, 3, adamw),
               train<torch::optim::AdamW>(device, 3, adamw));
}

TEST_F(Simulation, OperatorsEqualTheCpu) {
  using Function = std::function<at::Tensor(const at::Tensor&)>;
  const std::vector<std::pair<std::string, Function>> asynchronous{
      {"half", [](const at::Tensor& x) { return x.to(at::kHalf).to(at::kFloat); }},
      {"topk", [](const at::Tensor& x) { return std::get<1>(x.abs().flatten().topk(41)); }},
      {"index_select",
       [](const at::Tensor& x) {
         return x.flatten().index_select(0, std::get<1>(x.flatten().topk(9)));
       }},
      {"index",
       [](const at::Tensor& x) { return x.flatten().index({std::get<1>(x.flatten().topk(9))}); }},
      {"index_add_",
       [](const at::Tensor& x) {
         const auto f = x.flatten();
         const auto [values, indices] = f.topk(9);
         return at::zeros_like(f).index_add_(0, indices, values);
       }},
      {"scatter_add_",
       [](const at::Tensor& x) {
         const auto f = x.flatten();
         const auto [values, indices] = f.topk(9);
         return at::zeros_like(f).scatter_add_(0, indices, values);
       }},
      {"index_fill_",
       [](const at::Tensor& x) {
         auto f = x.flatten().clone();
         return f.index_fill_(0, std::get<1>(f.topk(9)), 0);
       }},
      {"cumsum",
       [](const at::Tensor& x) {
         const auto mask = x.flatten().gt(1);
         return at::where(mask, mask.cumsum(0) - 1, -1);
       }},
      {"matmul", [](const at::Tensor& x) { return x.matmul(x.t().narrow(1, 0, 4)); }},
      {"qr",
       [](const at::Tensor& x) {
         return std::get<0>(at::linalg_qr(x.narrow(1, 0, 4).contiguous()));
       }},
      {"norm", [](const at::Tensor& x) { return x.norm(); }},
      {"amax",
       [](const at::Tensor& x) { return (x / x.abs().amax(1, true)).round().to(at::kChar); }},
      {"isfinite", [](const at::Tensor& x) { return x.isfinite().all(); }},
      {"bits", [](const at::Tensor& x) { return x.view(at::kInt).bitwise_and(0x7fffffff); }},
      {"unfold", [](const at::Tensor& x) { return x.unfold(1, 4, 2).sum(-1); }},
      {"split", [](const at::Tensor& x) { return at::cat(x.split(7), 0); }},
      {"foreach",
       [](const at::Tensor& x) {
         std::vector<at::Tensor> both{x.clone(), x * 2};
         at::_foreach_mul_(both, 3);
         at::_foreach_add_(both, {x, x}, 2);
         return at::stack(at::_foreach_norm(both));
       }},
      {"embedding",
       [](const at::Tensor& x) { return at::embedding(x, std::get<1>(x.flatten().topk(9)) % 8); }},
      {"layer_norm", [](const at::Tensor& x) { return at::layer_norm(x, {64}); }},
      {"attention",
       [](const at::Tensor& x) {
         const auto q = x.view({1, 4, 16, 64});
         return std::get<0>(at::_scaled_dot_product_attention_math(q, q, q));
       }},
      {"resize_",
       [](const at::Tensor& x) {
         auto f = x.clone();
         return f.resize_({70, 64}).narrow(0, 0, 64).clone();
       }},
      {"set_data",
       [](const at::Tensor& x) {
         auto f = at::empty({0}, x.options());
         f.set_data(x * 2);
         f.set_(x.storage(), 64, {64}, {1});
         return f + 1;
       }},
  };
  torch::manual_seed(2);
  const auto cpu = at::randn({64, 64});
  const auto sim = on_device(cpu);
  for (const auto& [name, f] : asynchronous) {
    SCOPED_TRACE(name);
    const auto expected = f(cpu);
    const auto before = counts(0);
    const auto found = f(sim);
    EXPECT_EQ((counts(0) - before).host_synchronisations, 0);
    EXPECT_TRUE(expected.equal(found.cpu()));
  }
  const std::vector<std::pair<std::string, Function>> waiting{
      {"nonzero", [](const at::Tensor& x) { return x.gt(1).nonzero(); }},
      {"masked_select", [](const at::Tensor& x) { return x.masked_select(x.gt(1)); }},
      {"mask", [](const at::Tensor& x) { return x.index({x.gt(1)}); }},
      {"unique", [](const at::Tensor& x) { return std::get<0>(at::_unique2(x.round())); }},
      {"item", [](const at::Tensor& x) { return x * x.sum().item<float>(); }},
  };
  for (const auto& [name, f] : waiting) {
    SCOPED_TRACE(name);
    const auto expected = f(cpu);
    const auto before = counts(0);
    const auto found = f(sim);
    EXPECT_EQ((counts(0) - before).host_synchronisations, 1);
    EXPECT_TRUE(expected.equal(found.cpu()));
  }
  EXPECT_FALSE(sim.equal(sim + 1));
}

TEST_F(Simulation, AMissingWaitIsARace) {
  for (const bool waits : {true, false}) {
    auto x = at::zeros({1024}, device);
    settle();
    const auto stream = other();
    slow_down(0, current().native_handle(), 3000);
    x.add_(1);
    if (waits) order(current(), stream);
    double sum = 0;
    {
      const c10::StreamGuard on(stream);
      sum = x.sum().item<double>();
    }
    slow_down(0, current().native_handle(), 0);
    settle();
    if (waits) {
      EXPECT_EQ(sum, 1024);
      EXPECT_THAT(take_races(), IsEmpty());
    } else {
      // The sum may be right all the same.
      EXPECT_THAT(take_races(), Contains(HasSubstr("reads memory that aten::add.out")));
    }
  }
}

TEST_F(Simulation, MemoryThatIsFreedTooEarlyIsARace) {
  if (device_type() == at::kCUDA) GTEST_SKIP() << "the caching allocator keeps it";
  for (const bool recorded : {true, false}) {
    const auto stream = other();
    auto x = at::ones({1024}, device);
    auto sum = at::zeros({}, device);
    settle();
    slow_down(0, stream.native_handle(), 20000);
    {
      const c10::StreamGuard on(stream);
      sum.add_(x.sum());
    }
    if (recorded) x.record_stream(stream);
    x.reset();
    settle();
    slow_down(0, stream.native_handle(), 0);
    if (recorded) {
      EXPECT_EQ(sum.item<double>(), 1024);
      EXPECT_THAT(take_races(), IsEmpty());
    } else {
      EXPECT_TRUE(std::isnan(sum.item<double>()));
      EXPECT_THAT(take_races(), Contains(HasSubstr("the release of memory")));
    }
  }
}

TEST_F(Simulation, NewMemoryIsNaN) {
  EXPECT_TRUE(at::empty({100}, device).isnan().all().item<bool>());
  auto grown = at::ones({4}, device);
  grown.resize_({1000});
  const auto found = grown.cpu();
  EXPECT_TRUE(found.narrow(0, 0, 4).equal(at::ones({4})));
  EXPECT_TRUE(found.narrow(0, 4, 996).isnan().all().item<bool>());
}

TEST_F(Simulation, TheHostCannotTouchDeviceMemory) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto x = at::ones({4}, device);
  EXPECT_EXIT(
      {
        volatile float value = *static_cast<const float*>(x.const_data_ptr());
        static_cast<void>(value);
      },
      ::testing::KilledBySignal(SIGSEGV), "");
}

TEST_F(Simulation, CopiesToPinnedMemoryAreAsynchronous) {
  const auto x = at::full({1000}, 3.0, device);
  const auto pinned = at::empty({1000}, at::TensorOptions().pinned_memory(true));
  ASSERT_TRUE(pinned.is_pinned());
  EXPECT_FALSE(at::empty({10}).is_pinned());
  EXPECT_FALSE(x.is_pinned());
  settle();
  slow_down(0, current().native_handle(), 100000);
  auto before = counts(0);
  pinned.copy_(x, true);
  c10::Event done(device_type());
  done.record(current());
  EXPECT_FALSE(done.query());
  EXPECT_TRUE(pinned.isnan().all().item<bool>());
  EXPECT_EQ((counts(0) - before).host_synchronisations, 0);
  EXPECT_EQ((counts(0) - before).copies, 1);
  done.synchronize();
  EXPECT_TRUE(pinned.eq(3).all().item<bool>());
  EXPECT_EQ((counts(0) - before).host_synchronisations, 1);

  // The device reads pinned memory later: the host changes it too early here.
  auto target = at::zeros({1000}, device);
  settle();
  target.copy_(pinned, true);
  pinned.fill_(4);
  EXPECT_TRUE(target.cpu().eq(4).all().item<bool>());
  slow_down(0, current().native_handle(), 0);

  before = counts(0);
  auto pageable = at::empty({1000});
  pageable.copy_(x, true);
  EXPECT_TRUE(pageable.eq(3).all().item<bool>());
  target.copy_(pageable, true);
  EXPECT_EQ((counts(0) - before).host_synchronisations, 2);
}

TEST_F(Simulation, PinnedMemoryOutlivesItsCopies) {
  auto x = at::zeros({1000}, device);
  settle();
  slow_down(0, current().native_handle(), 5000);
  x.copy_(at::full({1000}, 7.0).pin_memory(), true);
  slow_down(0, current().native_handle(), 0);
  EXPECT_TRUE(x.eq(7).all().item<bool>());
}

TEST_F(Simulation, CopiesBetweenDevices) {
  const auto x = at::arange(100, device);
  const auto y = x.to(at::Device(device_type(), 1));
  EXPECT_EQ(y.device().index(), 1);
  EXPECT_TRUE(y.cpu().equal(at::arange(100)));
}

TEST_F(Simulation, TensorsOfTwoDevicesAreRefused) {
  EXPECT_ANY_THROW(at::ones({4}, device) + at::ones({4}));
}

TEST_F(Simulation, BlobsOverDeviceMemory) {
  auto x = at::ones({100}, device);
  auto part = at::from_blob(static_cast<float*>(x.data_ptr()) + 10, {5},
                            at::TensorOptions().device(device));
  part.mul_(3);
  EXPECT_EQ(x.sum().item<double>(), 110);
}

TEST_F(Simulation, CountsKernelsAndCopies) {
  const auto x = at::ones({10}, device);
  settle();
  const auto before = counts(0);
  record_names(0, true);
  auto y = x * 2;
  y.add_(1);
  y.copy_(x);
  const auto host = y.cpu();
  record_names(0, false);
  const auto made = counts(0) - before;
  EXPECT_EQ(made.kernels, 3);
  EXPECT_EQ(made.copies, 1);
  if (device_type() != at::kCUDA) {
    EXPECT_EQ(made.allocations, 1);
  }
  EXPECT_EQ(made.host_synchronisations, 1);
  EXPECT_THAT(recorded_names(0), ::testing::ElementsAre("aten::mul.out", "aten::add.out",
                                                        "aten::copy_", "aten::copy_"));
}

TEST_F(Simulation, RandomNumbersDependOnTheSeedOnly) {
  const auto draw = [](int delay) {
    set_delay(delay);
    torch::manual_seed(5);
    auto x = at::randn({50}, device);
    x = at::dropout(x, 0.5, true);
    return at::cat({x, at::rand({50}, device)}).cpu();
  };
  const auto first = draw(0);
  EXPECT_TRUE(first.equal(draw(300)));
  EXPECT_FALSE(first.isnan().any().item<bool>());
}

TEST_F(Simulation, AutogradRunsOnTheForwardStream) {
  auto weight = at::ones({100}, device).requires_grad_();
  settle();
  const auto stream = other();
  int64_t seen = -1;
  weight.register_hook([&](const at::Tensor&) { seen = current().id(); });
  at::Tensor loss;
  {
    const c10::StreamGuard on(stream);
    loss = (weight * 2).sum();
  }
  order(stream, current());
  loss.backward();
  EXPECT_EQ(seen, stream.id());
  EXPECT_EQ(weight.grad().sum().item<double>(), 200);
}

TEST_F(Simulation, AFailureOfAKernelIsThrownByTheNextWait) {
  const auto x = at::ones({4}, device);
  const auto y = x.index_select(0, at::full({1}, 9, at::TensorOptions(device).dtype(at::kLong)));
  EXPECT_ANY_THROW(settle());
  EXPECT_NO_THROW(settle());
}

TEST_F(Simulation, ThreadsUseDevicesOfTheirOwn) {
  std::vector<std::thread> threads;
  for (int index = 0; index < devices; ++index) {
    threads.emplace_back([index] {
      const at::Device mine(device_type(), static_cast<c10::DeviceIndex>(index));
      const c10::DeviceGuard on(mine);
      auto x = at::ones({100}, at::Device(device_type()));
      EXPECT_EQ(x.device(), mine);
      for (int i = 0; i < 20; ++i) x.mul_(1).add_(1);
      EXPECT_EQ(x.sum().item<double>(), 2100);
    });
  }
  for (auto& thread : threads) thread.join();
}

}  // namespace
}  // namespace lockstep::simulation
