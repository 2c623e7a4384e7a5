#include "comm/rank_context.h"

#include <sys/resource.h>

#include <array>
#include <stdexcept>

#include "comm/host/host.h"
#include "comm/tasks/task_communicator.h"
#include "tests/comm/conformance.h"
#include "tests/comm/loopback/loopback.h"
#include "tests/matchers.h"
#include "tests/message_of.h"

// How a rank waits, in worlds of one rank that receives what it does not send.

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

std::shared_ptr<Communicator> host_of_one(std::chrono::milliseconds timeout) {
  return host::create(host::World::create(1), 0, {.timeout = timeout});
}

detail::RankContext& context_of(Communicator& group) {
  return dynamic_cast<detail::BackendCommunicator&>(group).context();
}

TEST(RankContext, ATimeoutEndsTheWorldAndNamesTheMissingRanks) {
  const auto group = host_of_one(20ms);
  std::int64_t number = 0;
  auto work = recv_number(*group, number, 0, 1);
  EXPECT_EQ(message_of<TimeoutError>([&] { work.wait(); }),
            "recv #1 from rank 0 (host) rank 0 of 1: recv #1 from rank 0 waited 0.02 s for rank 0");
  EXPECT_THAT(message_of<TimeoutError>([&] { (void)group->barrier(); }),
              HasSubstr("the world failed earlier, in recv #1 from rank 0: recv #1 from rank 0 "
                        "waited 0.02 s for rank 0; a failed world cannot be used again"));
  work = {};
  EXPECT_EQ(group.use_count(), 1) << "an operation still refers to it";
}

TEST(RankContext, AWorksMissingRanksAreReadUnderTheGuard) {
  const auto group = host_of_one(20s);
  std::int64_t number = 0;
  auto work = recv_number(*group, number, 0, 1);
  EXPECT_EQ(work.missing(), std::vector{0});
  {
    const detail::RankContext::CallGuard guard(context_of(*group));
    EXPECT_THROW((void)work.missing(), InvalidArgument);
  }
  auto sent = send_number(*group, number, 0, 1);
  work.wait();
  sent.wait();
  EXPECT_TRUE(work.missing().empty());
}

TEST(RankContext, AnAbandonedOperationEndsTheWorldAndIsReleased) {
  std::array groups{create_loopback(20s), host_of_one(20s)};
  for (auto& group : groups) {
    std::int64_t number = 0;
    try {
      const auto work = recv_number(*group, number, 0, 1);
      throw std::runtime_error("unrelated");
    } catch (const std::runtime_error&) {
    }
    EXPECT_EQ(group.use_count(), 1) << "an operation still refers to it";
    EXPECT_THAT(message_of<CommError>([&] { group->make_progress(); }),
                HasSubstr("the world failed earlier: rank 0: recv #1 from rank 0 was abandoned"));
  }
}

TEST(RankContext, ARankThatWaitsSleeps) {
  const auto sleeps = [] {
    rusage used{};
    ::getrusage(RUSAGE_THREAD, &used);
    return used.ru_nvcsw;
  };
  for (const auto& group : {create_loopback(500ms), host_of_one(500ms)}) {
    std::int64_t number = 0;
    auto work = recv_number(*group, number, 0, 1);
    const auto before = sleeps();
    EXPECT_THROW(work.wait(), TimeoutError);
    EXPECT_GE(sleeps() - before, 2) << group->backend();
  }
}

/// Each operation awaits a recv of another world of the rank.
class Awaiting final : public detail::TaskCommunicator {
 public:
  explicit Awaiting(const std::shared_ptr<Communicator>& group)
      : TaskCommunicator({group, &context_of(*group)}, 0, 1) {
    context().add(*this);
  }
  ~Awaiting() override { context().remove(*this); }
  std::string_view backend() const override { return "awaiting"; }
  std::shared_ptr<std::byte> allocate(std::size_t) override { return nullptr; }
  std::shared_ptr<Communicator> split(int, int) override { return nullptr; }

 private:
  Work begin(Operation&& operation) override {
    return Work(begin_task(std::move(operation), [this](detail::TaskRequest&) { return run(); }));
  }
  detail::Task run() { co_await recv_number(*other_, number_, 0, 1); }

  std::shared_ptr<Communicator> other_ = create_loopback(20s);
  std::int64_t number_ = 0;
};

TEST(RankContext, AnOperationWithGraceIsWaitedForBeyondItsTimeout) {
  const auto group = std::make_shared<Awaiting>(create_loopback(20ms));
  auto work = group->barrier();
  const auto begin = Clock::now();
  EXPECT_THAT(message_of<TimeoutError>([&] { work.wait(); }),
              HasSubstr("barrier #1 waited 0.02 s"));
  EXPECT_GT(Clock::now() - begin, 200ms);
}

}  // namespace
}  // namespace lockstep::testing
