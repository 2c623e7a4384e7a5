#include "comm/control/status_relay.h"

#include <poll.h>
#include <sys/wait.h>

#include <csignal>
#include <optional>

#include "tests/comm/control/controlled_world.h"
#include "tests/matchers.h"

namespace lockstep::testing {
namespace {

std::vector<std::string> names(const control::HostsAnswer& answer) {
  std::vector<std::string> found;
  for (const auto& host : answer.hosts) {
    found.push_back(host.name + (host.has_answered ? "" : " silent"));
  }
  return found;
}

TEST(StatusRelay, AnswersForEveryOtherHost) {
  ControlledWorld world("aabbc", 5);
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
  ControlledWorld world("aabbc", 4);
  const auto answer = control::ask_hosts(socket_of(1), 1s);
  EXPECT_FALSE(answer.is_complete);
  EXPECT_THAT(names(answer), UnorderedElementsAre("b", "c silent"));
  for (const auto& host : answer.hosts) EXPECT_FALSE(host.is_of_silent_rank_0());
  EXPECT_THAT(answer.records, AnyOf(Contains("record of 2"), Contains("record of 3")));
}

TEST(StatusRelay, NamesTheHostOfARank0ThatIsStopped) {
  ControlledWorld world("abc", 2, 1);
  const auto answer = control::ask_hosts(socket_of(1), 500ms);
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
  ControlledWorld world("aabb", 2, 0, control::default_heartbeat);
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
    EXPECT_TRUE(world.knows_of_no_failure(rank));
    world.rank(rank).leave();
  }
  EXPECT_THAT(
      ::testing::internal::GetCapturedStderr(),
      MatchesRegex("lockstep: no heartbeat from host b \\(ranks 2, 3\\) for [2-9]\\.[0-9] s: "
                   "suspected, and counts as lost after 15 s\n"));
}

TEST(StatusRelay, SuspectsRank0WithoutItsHelp) {
  ControlledWorld world("ab", 1, 1, 1s);
  for (const auto until = std::chrono::steady_clock::now() + 20s;;) {
    const auto answer = control::ask_hosts(socket_of(1), 50ms);
    if (answer.suspicions.empty() && std::chrono::steady_clock::now() < until) continue;
    EXPECT_THAT(answer.suspicions,
                ElementsAre(HasSubstr("no heartbeat from host a (rank 0) for 0.")));
    break;
  }
  EXPECT_THAT(world.failure_at(0).text, StartsWith("no heartbeat from host a (rank 0) for 1."));
}

TEST(StatusRelay, OfAHostWithoutARankGivesNothing) {
  EXPECT_THAT(control::ask_hosts("lockstep-test-nobody", 1s).hosts, IsEmpty());
}

TEST(StatusRelay, SurvivesAQuestionThatIsGivenUp) {
  ControlledWorld world("ab", 2);
  for (int turn = 0; turn < 20; ++turn) control::ask_hosts(socket_of(0), 0s);
  EXPECT_TRUE(control::ask_hosts(socket_of(0), 20s).is_complete);
}

TEST(StatusRelay, ForgetsAClientWhoseSocketAChildHolds) {
  const auto nothing = [] { return std::vector<std::string>(); };
  control::StatusRelay relay(
      {.host = "a", .socket = socket_of(0), .records = nothing}, {},
      [](int, const control::Frame&) {}, nothing);
  control::ask_hosts(socket_of(0), 0s);
  relay.on_ready();  // accepts it
  const pid_t child = ::fork();
  if (child == 0) {
    ::pause();
    ::_exit(0);
  }
  relay.on_ready();  // reads that it has ended
  pollfd ready{.fd = relay.fd(), .events = POLLIN, .revents = 0};
  EXPECT_EQ(::poll(&ready, 1, 0), 0);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}

}  // namespace
}  // namespace lockstep::testing
