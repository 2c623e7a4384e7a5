#include "core/text.h"
#include "launch/job/supervisor.h"
#include "tests/simulation/attempt.h"

namespace lockstep::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using State = RankOutcome::State;

/// Time after which a world that is not over hangs.
constexpr Time longest_world = seconds(120);
/// How long the launcher waits for ranks of a failed attempt, and how often it looks.
constexpr Time grace = seconds(5);
constexpr Time between_looks = milliseconds(20);

/// A launcher that starts a job again after its first failure.
class Job {
 public:
  Job(SimulatedKernel& kernel, const Scenario& scenario) : kernel_(kernel), scenario_(scenario) {
    start(true);
    if (scenario.fault.kind == FaultKind::stranger) start_strangers();
    if (scenario.restarts) kernel_.scheduler().after(between_looks, [this] { look(); });
  }

  const std::vector<std::unique_ptr<Attempt>>& attempts() const { return attempts_; }

 private:
  void start(bool with_fault) {
    attempts_.push_back(std::make_unique<Attempt>(kernel_, scenario_, with_fault));
  }

  void look() {
    auto& attempt = *attempts_.back();
    const auto now = kernel_.scheduler().now();
    if (failed_at_ == Time(0) && has_failed(attempt)) failed_at_ = now;
    if (failed_at_ > Time(0) && now > failed_at_ + grace) kill_reachable(attempt);
    if (attempt.over() && failed_at_ > Time(0) && !host_is_out_of_reach()) {
      return kernel_.scheduler().after(backoff_.after(milliseconds(0)), [this] { restart(); });
    }
    const bool succeeded = !attempt.any(State::running) && !attempt.any(State::failed);
    if (!succeeded && now < longest_world)
      kernel_.scheduler().after(between_looks, [this] { look(); });
  }

  bool has_failed(Attempt& attempt) {
    for (int rank = 0; rank < scenario_.ranks; ++rank) {
      const bool succeeded = attempt.outcome(rank).state == State::succeeded;
      if (attempt.process(rank).over() && !succeeded) return true;
    }
    return false;
  }

  void kill_reachable(Attempt& attempt) {
    for (int rank = 0; rank < scenario_.ranks; ++rank) {
      if (attempt.reachable(rank)) kernel_.kill(attempt.process(rank));
    }
  }

  /// Whether a host is out of reach.
  bool host_is_out_of_reach() {
    auto& network = kernel_.network();
    for (int from = 0; from < network.hosts(); ++from) {
      if (!network.powered(from)) return true;
      for (int to = 0; to < network.hosts(); ++to) {
        if (network.is_cut(from, to)) return true;
      }
    }
    return false;
  }

  void restart() {
    // Rank 0's port is free when it has ended. SIGKILL ends it even if it is stopped.
    const bool is_stopped = scenario_.fault.kind == FaultKind::freeze_for_ever;
    if (scenario_.known_port && is_stopped) kernel_.kill(attempts_.back()->process(0));
    start(false);
    start_strangers();
  }

  /// Programs that connect to rank 0, one with what a rank of an earlier attempt has sent.
  void start_strangers() {
    auto& random = kernel_.random();
    auto texts = kernel_.network().first_bytes;
    texts.emplace_back("GET / HTTP/1.1\r\n\r\n");
    texts.emplace_back("");
    for (int i = 0; i < 2; ++i) {
      const auto bytes = texts[random.bits() % texts.size()];
      const int host = random.below(kernel_.network().hosts());
      kernel_.scheduler().after(kernel_.random_time(milliseconds(20)), [this, bytes, host] {
        kernel_.start(host, [this, bytes] {
          constexpr std::uint16_t first_port = 20000;
          run_stranger(scenario_.hosts.front(), scenario_.known_port ? known_port : first_port,
                       bytes);
        });
      });
    }
  }

  SimulatedKernel& kernel_;
  const Scenario& scenario_;
  std::vector<std::unique_ptr<Attempt>> attempts_;
  launch::Backoff backoff_{milliseconds(100)};
  Time failed_at_{};
};

}  // namespace

Verdict run_world(const Scenario& scenario, bool prints_trace) {
  SimulatedKernel kernel(scenario.seed, scenario.kernel);
  SimulatedKernel::active = &kernel;
  if (prints_trace) kernel.scheduler().print_trace();
  Job job(kernel, scenario);
  const bool over = kernel.scheduler().run(longest_world);
  Verdict verdict{.violation = {},
                  .trace = kernel.scheduler().trace_hash(),
                  .events = kernel.scheduler().events(),
                  .faulty = job.attempts().front()->fault().disturbed};
  for (const auto& attempt : job.attempts()) {
    if (verdict.violation.empty()) verdict.violation = broken_promise(*attempt);
  }
  if (!over && verdict.violation.empty()) verdict.violation = "the world does not end";
  if (scenario.restarts && verdict.violation.empty() && verdict.faulty &&
      scenario.fault.kind != FaultKind::lose_power && job.attempts().size() < 2 &&
      job.attempts().front()->any(State::failed)) {
    verdict.violation = "the job was not started again";
  }
  SimulatedKernel::active = nullptr;
  return verdict;
}

}  // namespace lockstep::testing
