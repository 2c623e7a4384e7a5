#include "comm/rank_context.h"

#include <thread>

#include "tests/matchers.h"
#include "tests/message_of.h"

// A rank of two whose backend is this test: it decides what each poll does.

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;

class FakeContext final : public detail::RankContext {
 public:
  explicit FakeContext(detail::WaitPolicy policy, bool has_mutex = true)
      : RankContext({.backend = "fake",
                     .rank = 0,
                     .timeout = 20ms,
                     .policy = policy,
                     .has_mutex = has_mutex}) {}

  void check(const detail::BackendRequest& /*operation*/) override { ++checks; }
  bool failed() const override { return failure_.recorded(); }
  void end(std::string_view text) { failure_.record({.text = std::string(text)}); }

  std::function<void(int poll)> at_poll = [](int) {};
  bool usable_thread = true;
  int polls = 0;
  int checks = 0;
  int sleeps = 0;
  int propagate_calls = 0;
  int ended_waits = 0;

 private:
  bool advance() override {
    at_poll(++polls);
    for (auto* group : groups()) group->poll();
    return false;
  }
  void record(const detail::Failure& failure) noexcept override { failure_.record(failure); }
  void propagate_failure() noexcept override { ++propagate_calls; }
  detail::Failure failure() override { return failure_.failure(); }
  bool sleep_unless(detail::Condition& over, std::chrono::nanoseconds longest) override {
    if (over.is_ready()) return true;
    ++sleeps;
    std::this_thread::sleep_for(std::min<std::chrono::nanoseconds>(longest, 1ms));
    return false;
  }
  void end_long_wait() noexcept override { ++ended_waits; }
  void expect_usable_thread() const override {
    if (!usable_thread) throw InvalidArgument("another thread");
  }

  detail::FailureRecord failure_;
};

class FakeCommunicator;

class FakeRequest final : public detail::GroupRequest<FakeCommunicator> {
 public:
  using GroupRequest::GroupRequest;
  void advance() override { set_complete(); }
  std::vector<int> missing() const override { return {1}; }
  std::chrono::milliseconds grace() const override { return grace_; }
  std::chrono::milliseconds grace_{};
};

class FakeCommunicator final : public detail::BackendCommunicator {
 public:
  explicit FakeCommunicator(FakeContext& context) : BackendCommunicator(0, 2), context_(context) {
    context_.add(*this);
  }
  ~FakeCommunicator() override { context_.remove(*this); }

  std::string_view backend() const override { return "fake"; }
  std::shared_ptr<std::byte> allocate(std::size_t) override { return nullptr; }
  std::shared_ptr<Communicator> split(int, int) override { return nullptr; }
  FakeContext& context() const override { return context_; }
  void poll() override {
    if (!may_complete) return;
    for (const auto& request : requests) request->advance();
    requests.clear();
  }
  void drop(std::vector<std::shared_ptr<void>>& pending) override {
    pending.insert(pending.end(), requests.begin(), requests.end());
    requests.clear();
  }

  bool may_complete = false;
  std::chrono::milliseconds grace{};
  std::vector<std::shared_ptr<FakeRequest>> requests;

 private:
  Work begin(Operation&& operation) override {
    const detail::RankContext::CallGuard guard(context_);
    number(operation);
    if (context_.failed()) context_.throw_failure(where(operation.label()));
    requests.push_back(std::make_shared<FakeRequest>(*this, std::move(operation)));
    requests.back()->grace_ = grace;
    return Work(requests.back());
  }

  FakeContext& context_;
};

/// Waits for an operation that is complete at that poll.
void wait_until(int last_poll, FakeContext& context) {
  const auto group = std::make_shared<FakeCommunicator>(context);
  auto work = group->barrier();
  context.at_poll = [&](int poll) { group->may_complete = poll == last_poll; };
  work.wait();
  EXPECT_EQ(context.polls, last_poll);
}

TEST(RankContext, ALongWaitChecksOtherRanksBeforeItSleeps) {
  constexpr detail::WaitPolicy policy{.spins = 10, .yields = 5, .must_poll = false};
  FakeContext of_short_wait(policy);
  wait_until(15, of_short_wait);
  EXPECT_EQ(of_short_wait.checks + of_short_wait.sleeps + of_short_wait.ended_waits, 0);
  FakeContext context(policy);
  wait_until(18, context);
  EXPECT_EQ(context.checks, 2);
  EXPECT_EQ(context.sleeps, 2);
  EXPECT_EQ(context.ended_waits, 1);
}

TEST(RankContext, ARankThatMustPollSpinsAgainInsteadOfSleeping) {
  FakeContext context({.spins = 10});
  wait_until(32, context);
  EXPECT_EQ(context.checks, 2) << "two polls followed a check";
}

TEST(RankContext, ATimeoutEndsTheWorldAndNamesTheMissingRanks) {
  FakeContext context({.spins = 1, .must_poll = false});
  const auto group = std::make_shared<FakeCommunicator>(context);
  auto work = group->barrier();
  const auto text = message_of<TimeoutError>([&] { work.wait(); });
  EXPECT_EQ(text, "barrier #1 (fake) rank 0 of 2: barrier #1 waited 0.02 s for rank 1");
  EXPECT_GE(context.propagate_calls, 1);
  EXPECT_EQ(context.ended_waits, 1);
  EXPECT_TRUE(group->requests.empty());
  EXPECT_EQ(message_of<TimeoutError>([&] { (void)group->barrier(); }),
            "barrier #2 (fake) rank 0 of 2: the world failed earlier, in barrier #1: barrier #1 "
            "waited 0.02 s for rank 1; a failed world cannot be used again: start all ranks anew");
}

TEST(RankContext, AWorksMissingRanksAreReadUnderTheGuard) {
  FakeContext context({.spins = 10});
  const auto group = std::make_shared<FakeCommunicator>(context);
  auto work = group->barrier();
  EXPECT_EQ(work.missing(), std::vector{1});
  {
    const detail::RankContext::CallGuard guard(context);
    EXPECT_THROW((void)work.missing(), InvalidArgument);
  }
  group->may_complete = true;
  work.wait();
  EXPECT_TRUE(work.missing().empty());
}

TEST(RankContext, AnOperationWithGraceIsWaitedForBeyondItsTimeout) {
  FakeContext context({.spins = 1, .must_poll = false});
  const auto group = std::make_shared<FakeCommunicator>(context);
  group->grace = 1h;
  auto work = group->barrier();
  // The timeout has passed after so many sleeps of 1 ms.
  context.at_poll = [&](int) { group->may_complete = context.sleeps >= 40; };
  work.wait();
  EXPECT_FALSE(context.failed());
}

TEST(RankContext, AnOperationThatAFailureCompletesIsComplete) {
  FakeContext context({.spins = 10});
  const auto group = std::make_shared<FakeCommunicator>(context);
  auto work = group->barrier();
  context.at_poll = [&](int poll) {
    if (poll == 3) context.end("over");
    group->may_complete = poll == 4;
  };
  work.wait();
  EXPECT_EQ(context.polls, 4);
  EXPECT_THAT(message_of<CommError>([&] { group->make_progress(); }),
              HasSubstr("world (fake) rank 0 of 2: over"));
}

TEST(RankContext, AnAbandonedOperationEndsTheWorldAndIsReleased) {
  for (const bool has_mutex : {true, false}) {
    FakeContext context({.spins = 10}, has_mutex);
    const auto group = std::make_shared<FakeCommunicator>(context);
    try {
      const auto work = group->barrier();
      throw std::runtime_error("unrelated");
    } catch (const std::runtime_error&) {
    }
    EXPECT_TRUE(group->requests.empty());
    EXPECT_THAT(message_of<CommError>([&] { group->make_progress(); }),
                HasSubstr("the world failed earlier: rank 0: barrier #1 was abandoned"));
  }
}

TEST(RankContext, AThreadThatTheBackendRefusesLeavesTheGroupsUsable) {
  FakeContext context({.spins = 10});
  const auto group = std::make_shared<FakeCommunicator>(context);
  context.usable_thread = false;
  EXPECT_THROW((void)group->barrier(), InvalidArgument);
  context.usable_thread = true;
  group->may_complete = true;
  group->barrier().wait();
}

}  // namespace
}  // namespace lockstep::testing
