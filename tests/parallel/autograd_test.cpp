// Properties of autograd's engine that the reducer relies on.
#include <gtest/gtest.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/torch.h>

#include <exception>
#include <functional>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

namespace {

using torch::autograd::Engine;
using torch::autograd::get_current_graph_task_id;
using torch::autograd::variable_list;

class Hook final : public torch::autograd::FunctionPostHook {
 public:
  explicit Hook(std::function<void(const at::Tensor&)> fn) : fn_(std::move(fn)) {}
  variable_list operator()(const variable_list& outputs, const variable_list& inputs) override {
    fn_(inputs.at(0));
    return outputs;
  }

 private:
  std::function<void(const at::Tensor&)> fn_;
};

/// A leaf whose accumulator carries a hook.
struct Leaf {
  Leaf(double value, std::function<void(const at::Tensor&)> hook)
      : tensor(torch::tensor({value}, torch::dtype(torch::kDouble).requires_grad(true))),
        accumulator(torch::autograd::impl::grad_accumulator(tensor)) {
    accumulator->add_post_hook(std::make_unique<Hook>(std::move(hook)));
  }
  at::Tensor tensor;
  decltype(torch::autograd::impl::grad_accumulator(at::Tensor())) accumulator;
};

void queue(std::function<void()> fn) { Engine::get_default_engine().queue_callback(std::move(fn)); }

struct Custom : std::runtime_error {
  using std::runtime_error::runtime_error;
};

TEST(Autograd, RunsACallbackQueuedByAHookOnceWhenAllHooksAreDone) {
  std::vector<int> events;
  int task = -1;
  Leaf a(2, [&](const at::Tensor&) {
    events.push_back(1);
    if (task < 0) queue([&] { events.push_back(get_current_graph_task_id() == task ? 2 : 3); });
    task = get_current_graph_task_id();
  });
  Leaf b(3, [&](const at::Tensor&) {
    events.push_back(1);
    if (task < 0) queue([&] { events.push_back(get_current_graph_task_id() == task ? 2 : 3); });
    task = get_current_graph_task_id();
  });
  EXPECT_EQ(get_current_graph_task_id(), -1);
  (a.tensor * b.tensor).sum().backward();
  EXPECT_GE(task, 0);
  EXPECT_EQ(get_current_graph_task_id(), -1);
  EXPECT_EQ(events, (std::vector<int>{1, 1, 2}));
}

TEST(Autograd, GivesEveryBackwardItsOwnTaskAndCallback) {
  std::vector<int> tasks;
  int callbacks = 0;
  Leaf a(2, [&](const at::Tensor&) {
    tasks.push_back(get_current_graph_task_id());
    queue([&] { ++callbacks; });
  });
  auto loss = (a.tensor * a.tensor).sum();
  loss.backward({}, /*retain_graph=*/true);
  loss.backward({}, /*retain_graph=*/true);
  loss.backward();
  ASSERT_EQ(tasks.size(), 3U);
  EXPECT_TRUE(tasks[0] != tasks[1] && tasks[1] != tasks[2] && tasks[0] != tasks[2]);
  EXPECT_EQ(callbacks, 3);
}

TEST(Autograd, CallsAHookWithAnUndefinedGradient) {
  bool called = false;
  bool defined = true;
  Leaf a(2, [&](const at::Tensor& gradient) {
    called = true;
    defined = gradient.defined();
  });
  struct NoGradient : torch::autograd::Function<NoGradient> {
    static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) {
      return x * 2;
    }
    static variable_list backward(torch::autograd::AutogradContext*, const variable_list&) {
      return {at::Tensor()};
    }
  };
  NoGradient::apply(a.tensor).sum().backward();
  EXPECT_TRUE(called);
  EXPECT_FALSE(defined);
  EXPECT_FALSE(a.tensor.grad().defined());
}

/// Runs another backward within backward, as recomputation does.
struct Nested : torch::autograd::Function<Nested> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& leaf) {
    context->saved_data["leaf"] = leaf;
    return x * 1;
  }
  static variable_list backward(torch::autograd::AutogradContext* context,
                                const variable_list& gradients) {
    const auto leaf = context->saved_data["leaf"].toTensor();
    {
      const at::AutoGradMode grad(true);
      (leaf * 10).sum().backward();
    }
    return {gradients[0], at::Tensor()};
  }
};

TEST(Autograd, EndsABackwardWithinABackwardFirst) {
  std::vector<std::pair<int, int>> events;  // task, 0 = hook, 1 = callback
  Leaf a(2, [&](const at::Tensor&) {
    const int task = get_current_graph_task_id();
    events.emplace_back(task, 0);
    queue([&events, task] { events.emplace_back(task, 1); });
  });
  auto y = a.tensor * 3;
  int outer = -1;
  y.register_hook([&](const at::Tensor&) { outer = get_current_graph_task_id(); });
  Nested::apply(y, a.tensor).sum().backward();
  ASSERT_EQ(events.size(), 4U);
  EXPECT_EQ(events[0].second, 0);
  EXPECT_EQ(events[1], std::pair(events[0].first, 1));
  EXPECT_NE(events[0].first, outer);
  EXPECT_EQ(events[2], std::pair(outer, 0));
  EXPECT_EQ(events[3], std::pair(outer, 1));
  EXPECT_EQ(a.tensor.grad().item<double>(), 13);
}

TEST(Autograd, DropsTheCallbackOfABackwardThatThrows) {
  bool called = false;
  auto owned = std::make_shared<int>(0);
  const std::weak_ptr<int> watch = owned;
  bool fail = true;
  Leaf a(2, [&](const at::Tensor&) {
    if (!fail) return;
    queue([&called, owned] { called = true; });
    owned.reset();
    throw Custom("in the hook");
  });
  EXPECT_THROW((a.tensor * a.tensor).sum().backward(), Custom);
  EXPECT_FALSE(called);
  // The graph task destroys the callback with its captures, which notifies the reducer.
  EXPECT_TRUE(watch.expired());
  EXPECT_EQ(get_current_graph_task_id(), -1);
  fail = false;
  EXPECT_NO_THROW((a.tensor * a.tensor).sum().backward());
}

TEST(Autograd, KeepsTheTypeOfWhatACallbackThrows) {
  bool fail = true;
  Leaf a(2, [&](const at::Tensor&) {
    queue([&] {
      if (fail) throw Custom("in the callback");
    });
  });
  EXPECT_THROW((a.tensor * a.tensor).sum().backward(), Custom);
  fail = false;
  EXPECT_NO_THROW((a.tensor * a.tensor).sum().backward());
}

TEST(Autograd, RunsHooksAndCallbacksOnTheCallingThread) {
  std::vector<std::thread> threads;
  std::vector<int> callbacks(3);
  std::vector<char> elsewhere(3);
  for (std::size_t t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      const auto self = std::this_thread::get_id();
      Leaf a(2, [&](const at::Tensor&) {
        if (std::this_thread::get_id() != self) elsewhere[t] = 1;
        queue([&] {
          if (std::this_thread::get_id() != self) elsewhere[t] = 1;
          ++callbacks[t];
        });
      });
      for (int i = 0; i < 500; ++i) (a.tensor * a.tensor).sum().backward();
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(callbacks, (std::vector<int>{500, 500, 500}));
  EXPECT_EQ(elsewhere, (std::vector<char>{0, 0, 0}));
}

TEST(Autograd, TellsAGradientThatIsAskedForFromOneThatIsAccumulated) {
  Leaf a(2, [](const at::Tensor&) {});
  bool needed = true;
  bool default_mode = true;
  const auto run = [&](const std::function<void(const at::Tensor&)>& backward) {
    auto y = a.tensor * 3;
    y.register_hook([&](const at::Tensor&) {
      const auto* info = torch::autograd::get_current_graph_task_exec_info();
      default_mode = info == nullptr || info->empty();
      if (default_mode) return;
      const auto found = info->find(a.accumulator.get());
      needed = found != info->end() && found->second.needed_;
    });
    backward(y.sum());
  };
  run([&](const at::Tensor& loss) { torch::autograd::grad({loss}, {a.tensor}); });
  EXPECT_FALSE(default_mode);
  EXPECT_FALSE(needed);
  EXPECT_FALSE(a.tensor.grad().defined());
  run([&](const at::Tensor& loss) {
    const std::vector<at::Tensor> inputs{a.tensor};
    loss.backward({}, std::nullopt, false, inputs);
  });
  EXPECT_FALSE(default_mode);
  EXPECT_TRUE(needed);
  EXPECT_TRUE(a.tensor.grad().defined());
  run([&](const at::Tensor& loss) { loss.backward(); });
  EXPECT_TRUE(default_mode);
}

TEST(Autograd, CallsAHookOfATensorThatIsThenChangedInPlace) {
  Leaf a(2, [](const at::Tensor&) {});
  int called = 0;
  auto y = a.tensor * 3;
  y.register_hook([&](const at::Tensor&) { ++called; });
  y.relu_();
  y.sum().backward();
  EXPECT_EQ(called, 1);
  EXPECT_EQ(a.tensor.grad().item<double>(), 3);
}

TEST(Autograd, CallsAHookOfAViewsBaseButNotOfTheViewWhenThatIsChangedInPlace) {
  Leaf a(2, [](const at::Tensor&) {});
  int view_called = 0;
  int base_called = 0;
  auto y = (a.tensor * 3).view({1, 1});
  y.register_hook([&](const at::Tensor&) { ++view_called; });
  at::Tensor(y._base()).register_hook([&](const at::Tensor&) { ++base_called; });
  y.relu_();
  y.sum().backward();
  EXPECT_EQ(view_called, 0);
  EXPECT_EQ(base_called, 1);
  EXPECT_EQ(a.tensor.grad().item<double>(), 3);
}

}  // namespace
