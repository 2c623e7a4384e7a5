#include "comm/control/status_relay.h"

#include <unistd.h>

#include <algorithm>
#include <future>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/control/control.h"
#include "tests/comm/control/meeting.h"
#include "tests/matchers.h"

namespace lockstep::testing {
namespace {

using control::Control;
using control::StatusSource;

std::string socket_of(int rank) {
  return "lockstep-test-" + std::to_string(::getpid()) + "-" + std::to_string(rank);
}

/// A world of ranks on hosts of these letters. Each rank has two records: one short, one as long as
/// a message may be. Of its ranks, `serving` from `first` on answer questions.
class StatusWorld {
 public:
  StatusWorld(const std::string& hosts, int serving, int first = 0,
              std::chrono::milliseconds heartbeat = 60s) {
    const int size = static_cast<int>(hosts.size());
    std::vector<control::Settings> others;
    const auto host = [&](int rank) { return hosts.substr(static_cast<std::size_t>(rank), 1); };
    auto rank_0 = rank_of(0, size, host(0));
    rank_0.heartbeat = heartbeat;
    for (int rank = 1; rank < size; ++rank) others.push_back(rank_of(rank, size, host(rank)));
    auto met = meet(rank_0, others);
    const auto add_or_keep = [&](int rank, std::vector<control::Member> members) {
      if (rank >= first && rank < first + serving) {
        add(rank, host(rank), std::move(members));
      } else {
        std::ranges::move(members, std::back_inserter(idle_));
      }
    };
    add_or_keep(0, std::move(met.of_rank_0));
    for (int rank = 1; rank < size; ++rank) {
      std::vector<control::Member> one;
      one.push_back(std::move(met.is_agreed[static_cast<std::size_t>(rank - 1)]));
      add_or_keep(rank, std::move(one));
    }
  }

  Control& rank(std::size_t rank) { return *ranks_[rank]; }
  /// Sends heartbeats of the ranks that do not serve.
  void send_heartbeats() {
    for (auto& member : idle_) member.connection.send({.kind = control::Kind::heartbeat});
  }
  std::future<detail::Failure>& failure(std::size_t rank) { return failures_[rank]; }

 private:
  void add(int rank, const std::string& host, std::vector<control::Member> others) {
    StatusSource source{.rank = rank, .host = host, .socket = socket_of(rank), .records = [rank] {
                          return std::vector{"record of " + std::to_string(rank),
                                             std::string(control::longest_answer, 'x')};
                        }};
    const auto promise = std::make_shared<std::promise<detail::Failure>>();
    failures_.push_back(promise->get_future());
    ranks_.push_back(std::make_unique<Control>(
        std::move(others),
        [promise](const detail::Failure& failure) { promise->set_value(failure); },
        std::move(source)));
  }

  std::vector<std::unique_ptr<Control>> ranks_;
  std::vector<std::future<detail::Failure>> failures_;
  std::vector<control::Member> idle_;
};

std::vector<std::string> names(const control::HostsAnswer& answer) {
  std::vector<std::string> found;
  for (const auto& host : answer.hosts) {
    found.push_back(host.name + (host.has_answered ? "" : " silent"));
  }
  return found;
}

TEST(StatusRelay, AnswersForEveryOtherHost) {
  StatusWorld world("aabbc", 5);
  const auto of_rank_0 = control::ask_hosts(socket_of(0), 20s);
  EXPECT_TRUE(of_rank_0.is_complete);
  EXPECT_THAT(names(of_rank_0), UnorderedElementsAre("b", "c"));
  // Two ranks of host b are asked. The first answer of each host is complete.
  const auto& records = of_rank_0.records;
  EXPECT_THAT(records, AnyOf(Contains("record of 2"), Contains("record of 3")));
  EXPECT_THAT(records, Contains("record of 4"));
  EXPECT_GE(std::ranges::count(records, std::string(control::longest_answer, 'x')), 2);
  const auto of_rank_3 = control::ask_hosts(socket_of(3), 20s);
  EXPECT_THAT(names(of_rank_3), UnorderedElementsAre("a", "c"));
  EXPECT_THAT(of_rank_3.records, AnyOf(Contains("record of 0"), Contains("record of 1")));
  for (const auto& host : of_rank_3.hosts) {
    if (host.name == "a") {
      EXPECT_THAT(host.ranks, UnorderedElementsAre(0, 1));
    }
  }
  for (int rank = 0; rank < 5; ++rank) world.rank(static_cast<std::size_t>(rank)).leave();
}

TEST(StatusRelay, NamesAHostThatDoesNotAnswer) {
  StatusWorld world("aabbc", 4);
  const auto answer = control::ask_hosts(socket_of(1), 1s);
  EXPECT_FALSE(answer.is_complete);
  EXPECT_THAT(names(answer), UnorderedElementsAre("b", "c silent"));
  for (const auto& host : answer.hosts) EXPECT_FALSE(host.is_of_silent_rank_0());
  EXPECT_THAT(answer.records, AnyOf(Contains("record of 2"), Contains("record of 3")));
}

TEST(StatusRelay, NamesTheHostOfARank0ThatIsStopped) {
  StatusWorld world("abc", 2, 1);
  const auto answer = control::ask_hosts(socket_of(1), 1s);
  EXPECT_FALSE(answer.is_complete);
  ASSERT_THAT(names(answer), UnorderedElementsAre("a silent"));
  EXPECT_TRUE(answer.hosts.front().is_of_silent_rank_0());
}

/// What rank 0 and then rank 1 say of hosts whose heartbeats are late, once both say so or neither.
std::vector<std::string> suspicions(bool any) {
  for (const auto until = std::chrono::steady_clock::now() + 30s;;) {
    auto texts = control::ask_hosts(socket_of(0), 100ms).suspicions;
    const auto of_rank_1 = control::ask_hosts(socket_of(1), 100ms).suspicions;
    const bool found = texts.empty() != any && of_rank_1.empty() != any;
    texts.insert(texts.end(), of_rank_1.begin(), of_rank_1.end());
    if (found || std::chrono::steady_clock::now() > until) return texts;
  }
}

TEST(StatusRelay, NamesASilentHostUntilItIsBack) {
  ::testing::internal::CaptureStderr();
  StatusWorld world("aabb", 2, 0, control::default_heartbeat);
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_THAT(
      suspicions(true),
      ElementsAre(MatchesRegex("no heartbeat from host b \\(ranks 2, 3\\) for [2-9]\\.[0-9] s: "
                               "suspected, and counts as lost after 15 s"),
                  MatchesRegex("no heartbeat from host b .*")));
  EXPECT_GT(std::chrono::steady_clock::now() - begin, 1900ms);
  world.send_heartbeats();
  EXPECT_THAT(suspicions(false), IsEmpty());
  for (const std::size_t rank : {0, 1}) {
    EXPECT_EQ(world.failure(rank).wait_for(0s), std::future_status::timeout);
    world.rank(rank).leave();
  }
  EXPECT_THAT(
      ::testing::internal::GetCapturedStderr(),
      MatchesRegex("lockstep: no heartbeat from host b \\(ranks 2, 3\\) for [2-9]\\.[0-9] s: "
                   "suspected, and counts as lost after 15 s\n"
                   "lockstep: host b is no longer suspected: a frame from rank [23] "
                   "arrived after [2-9]\\.[0-9] s\n"));
}

TEST(StatusRelay, SuspectsRank0WithoutItsHelp) {
  StatusWorld world("ab", 1, 1, 1s);
  for (const auto until = std::chrono::steady_clock::now() + 20s;;) {
    const auto answer = control::ask_hosts(socket_of(1), 50ms);
    if (answer.suspicions.empty() && std::chrono::steady_clock::now() < until) continue;
    EXPECT_THAT(answer.suspicions,
                ElementsAre(HasSubstr("no heartbeat from host a (rank 0) for 0.")));
    break;
  }
  EXPECT_THAT(world.failure(0).get().text, StartsWith("no heartbeat from host a (rank 0) for 1."));
}

TEST(StatusRelay, OfAHostWithoutARankGivesNothing) {
  EXPECT_THAT(control::ask_hosts("lockstep-test-nobody", 1s).hosts, IsEmpty());
}

TEST(StatusRelay, SurvivesAQuestionThatIsGivenUp) {
  StatusWorld world("ab", 2);
  for (int turn = 0; turn < 20; ++turn) control::ask_hosts(socket_of(0), 0s);
  EXPECT_TRUE(control::ask_hosts(socket_of(0), 20s).is_complete);
}

TEST(Control, ACrashReachesEveryRank) {
  StatusWorld world("abc", 3);
  world.rank(1).fail_by_crash("rank 1 (pid 7) crashed: SIGSEGV", 1);
  for (const std::size_t rank : {0, 2}) {
    ASSERT_EQ(world.failure(rank).wait_for(30s), std::future_status::ready);
    const auto failure = world.failure(rank).get();
    EXPECT_EQ(failure.text, "rank 1 (pid 7) crashed: SIGSEGV");
    EXPECT_EQ(failure.rank, 1);
  }
}

}  // namespace
}  // namespace lockstep::testing
