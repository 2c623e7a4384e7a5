#include "tests/comm/loopback/loopback.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "comm/backend_communicator.h"
#include "comm/operation.h"
#include "comm/tasks/task_communicator.h"
#include "lockstep/error.h"

namespace lockstep::testing {
namespace {

using detail::Task;
using detail::TaskRequest;

/// The state of the only rank. Its failures stay in this process.
class LoopbackContext final : public detail::RankContext {
 public:
  explicit LoopbackContext(std::chrono::milliseconds timeout)
      : RankContext({.backend = "loopback",
                     .rank = 0,
                     .timeout = timeout,
                     .policy = {.spins = 10},
                     .has_mutex = true}) {}
};

class Loopback final : public detail::TaskCommunicator {
 public:
  explicit Loopback(std::shared_ptr<detail::RankContext> context)
      : TaskCommunicator(std::move(context), 0, 1) {
    this->context().add(*this);
  }
  ~Loopback() override {
    const auto lock = context().lock();
    context().remove(*this);
  }

  std::string_view backend() const override { return "loopback"; }
  bool matches_by_tag() const override { return true; }
  std::shared_ptr<std::byte> allocate(std::size_t bytes) override {
    return detail::take_private_memory(bytes, backend());
  }
  std::shared_ptr<Communicator> split(int color, int /*key*/) override {
    return color < 0 ? nullptr : std::make_shared<Loopback>(shared_context());
  }

 private:
  struct Message {
    std::uint32_t tag;
    DType dtype;
    std::vector<std::byte> bytes;
  };

  Work begin(Operation&& operation) override {
    return Work(begin_task(std::move(operation), [this](TaskRequest& request) {
      return request.operation().is_message() ? pass(request) : run(request.operation());
    }));
  }

  Task run(const Operation& operation) {
    const auto* input = operation.input;
    auto* output = operation.output;
    if (operation.is_reduction()) {
      detail::reduce(operation, {&input, 1}, {&output, 1}, operation.part(0));
    } else if (operation.collective != Collective::barrier && input != output) {
      const auto bytes = operation.part(0) * size_of(operation.dtype);
      if (bytes > 0) std::memmove(output, input, bytes);
    }
    co_return;
  }

  Task pass(TaskRequest& request) {
    const auto& operation = request.operation();
    const auto bytes = operation.count * size_of(operation.dtype);
    if (operation.collective == Collective::send) {
      messages_.push_back(
          {operation.tag, operation.dtype, {operation.input, operation.input + bytes}});
      co_return;
    }
    const auto find = [&] { return std::ranges::find(messages_, operation.tag, &Message::tag); };
    co_await detail::until([&] { return find() != messages_.end(); });
    const auto message = find();
    if (message->bytes.size() != bytes || message->dtype != operation.dtype) {
      throw CommError(operation.label() + " differs from the message in count or dtype");
    }
    std::ranges::copy(message->bytes, operation.output);
    messages_.erase(message);
    request.set_source(0);
  }

  std::deque<Message> messages_;  ///< sent and not received
};

}  // namespace

std::shared_ptr<Communicator> create_loopback(std::chrono::milliseconds timeout) {
  return std::make_shared<Loopback>(std::make_shared<LoopbackContext>(timeout));
}

}  // namespace lockstep::testing
