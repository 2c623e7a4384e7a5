// The simulated device reports accesses that no event orders; tests of streams rely on it.
#include "tests/device/simulation/simulation.h"

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/torch.h>

#include <cmath>

#include "lockstep/autocast.h"
#include "tests/device/on_devices.h"
#include "tests/matchers.h"

namespace lockstep::simulation {
namespace {

using namespace testing;

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

TEST_F(Simulation, AutocastLowersThePrecision) {
  torch::nn::Linear model(3, 4);
  model->to(device);
  at::Tensor loss;
  {
    const Autocast lower(at::kBFloat16, device.type());
    const auto y = model->forward(at::ones({2, 3}, at::TensorOptions(device)));
    EXPECT_EQ(y.scalar_type(), at::kBFloat16);
    loss = at::mse_loss(y, at::zeros_like(y));
    EXPECT_EQ(loss.scalar_type(), at::kFloat);
  }
  loss.backward();
  EXPECT_EQ(model->weight.grad().scalar_type(), at::kFloat);
}

}  // namespace
}  // namespace lockstep::simulation
