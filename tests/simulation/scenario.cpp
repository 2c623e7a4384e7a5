#include "tests/simulation/scenario.h"

#include <array>

#include "core/text.h"

namespace lockstep::testing {
namespace {

using detail::concat;
using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr std::array names = {
    "no fault",      "kill",     "lose power",  "freeze",    "freeze for ever",
    "short freeze",  "cut",      "cut one way", "short cut", "reset",
    "program error", "mismatch", "hang",        "leave",     "stranger"};

/// Every kind, those that need the most different moments more often.
FaultKind random_kind(Random& random) {
  using enum FaultKind;
  return random.pick({none,          none,     none,       kill,        kill,      kill,
                      kill,          kill,     lose_power, lose_power,  freeze,    freeze_for_ever,
                      short_freeze,  cut,      cut,        cut_one_way, short_cut, reset,
                      program_error, mismatch, hang,       leave,       stranger,  stranger});
}

ScenarioStep random_step(Random& random, const Scenario& scenario) {
  using enum Collective;
  ScenarioStep step;
  step.collective = random.pick({all_reduce, all_reduce, reduce, broadcast, all_gather,
                                 reduce_scatter, gather, scatter, all_to_all, barrier, send});
  step.dtype = random.pick({DType::i32, DType::i64, DType::f32, DType::f64});
  step.reduce = random.pick({ReduceOp::sum, ReduceOp::sum, ReduceOp::min, ReduceOp::max});
  // Eager, longer than that, and longer than a piece between hosts.
  const int longest = random.pick({4, 300, 300, 2'000, 40'000});
  step.count = static_cast<std::size_t>(random.below(longest));
  step.root = random.below(scenario.ranks);
  step.in_split = scenario.splits && random.chance(30) && step.collective != send;
  step.overlaps = random.chance(40);
  step.work = random.chance(30) ? milliseconds(random.below(20)) : milliseconds(0);
  return step;
}

SimulatedKernel::Settings random_kernel(Random& random, int hosts, milliseconds heartbeat) {
  SimulatedKernel::Settings settings{.hosts = hosts};
  settings.network = {.delay = microseconds(random.pick({20, 100, 1'000})),
                      .jitter = microseconds(random.pick({10, 500, 3'000})),
                      .lost_percent = random.pick({0, 0, 2}),
                      .repeat = heartbeat / 20,
                      .buffer = static_cast<std::size_t>(random.pick({1'000, 4'000, 65'536})),
                      .splits = random.chance(70)};
  settings.preempt_percent = random.pick({0, 3, 20});
  settings.longest_delay = microseconds(random.pick({20, 200, 1'000}));
  settings.longest_pause = heartbeat / 20;
  return settings;
}

void choose_fault(Random& random, Scenario& scenario) {
  auto& fault = scenario.fault;
  fault.kind = random_kind(random);
  fault.rank = random.below(scenario.ranks);
  fault.call = 1 + static_cast<std::uint64_t>(random.below(random.pick({30, 150, 150, 400, 1000})));
  fault.step = static_cast<std::size_t>(random.below(static_cast<int>(scenario.steps.size())));
  const auto heartbeat = static_cast<int>(scenario.heartbeat.count());
  fault.duration = is_harmless(fault.kind) ? milliseconds(random.below(heartbeat / 3))
                                           : milliseconds(3 * heartbeat + random.below(heartbeat));
  const bool in_program = fault.kind == FaultKind::mismatch || fault.kind == FaultKind::hang ||
                          fault.kind == FaultKind::leave;
  // Only ranks of an operation detect that it differs; send() and recv() concern two ranks.
  if (!in_program) return;
  for (auto& step : scenario.steps) {
    step.in_split = false;
    if (step.collective == Collective::send) step.collective = Collective::barrier;
  }
  scenario.splits = false;
}

/// Replaces the fault by disturbances while ranks join. Freezes and cuts last up to 8 s: longer
/// than a rank tries one address. Late packets of one connection let those of others overtake them.
void disturb_joining(Random& random, Scenario& scenario) {
  using enum FaultKind;
  scenario.restarts = false;
  scenario.fault = {.kind = random.chance(30) ? stranger : none};
  scenario.timeout = std::chrono::minutes(1);
  scenario.heartbeat = std::chrono::seconds(30);
  scenario.kernel.network.late_percent = random.pick({0, 0, 5, 30});
  scenario.kernel.network.latest = milliseconds(random.pick({50, 1'000, 7'000}));
  const int count = 1 + random.below(3);
  for (int i = 0; i < count; ++i) {
    const int longest = random.pick({100, 2'000, 8'000});
    scenario.disturbances.push_back(
        {.kind = random.pick({freeze, freeze, cut, cut, cut_one_way, reset, reset, reset}),
         .rank = random.chance(40) ? 0 : random.below(scenario.ranks),
         .call = 1 + static_cast<std::uint64_t>(random.below(random.pick({10, 50, 200}))),
         .duration = milliseconds(random.below(longest))});
  }
}

/// Chosen last, so that all else is the same over both networks.
void choose_network(Random& random, Scenario& scenario) {
  scenario.over_tcp = random.chance(50);
  scenario.known_port = scenario.over_tcp && random.chance(50);
  if (!scenario.over_tcp) return;
  // A window of bytes takes about 30 ms, and messages less than the timeout.
  auto& buffer = scenario.kernel.network.buffer;
  for (const auto& step : scenario.steps) buffer = std::max(buffer, step.count * 8 / 10);
  // The end of a stream is an error after 2 s.
  if (scenario.fault.kind == FaultKind::reset) scenario.timeout = milliseconds(2'800);
  // Streams are connected after the control connections.
  for (auto& one : scenario.disturbances) one.call *= random.chance(50) ? 1 : 3;
}

std::string fault_text(const Fault& fault) {
  return concat(name(fault.kind), " of rank ", fault.rank, " at call ", fault.call, " or step ",
                fault.step, " for ", fault.duration.count() / 1'000'000, " ms");
}

}  // namespace

std::string_view name(FaultKind kind) { return names[static_cast<std::size_t>(kind)]; }

bool is_harmless(FaultKind kind) {
  return kind == FaultKind::none || kind == FaultKind::short_freeze ||
         kind == FaultKind::short_cut || kind == FaultKind::stranger;
}

bool is_seen_by_control(FaultKind kind) {
  return !is_harmless(kind) && kind != FaultKind::mismatch && kind != FaultKind::hang &&
         kind != FaultKind::leave;
}

Scenario Scenario::make(std::uint64_t seed, bool joining) {
  Random random(Random(seed).bits());  // the streams of two seeds must not overlap
  Scenario scenario;
  scenario.seed = seed;
  scenario.ranks = 2 + random.below(random.chance(80) ? 3 : 6);
  const int hosts = std::min(scenario.ranks, 2 + random.below(2));
  for (int rank = 0; rank < scenario.ranks; ++rank) {
    scenario.hosts.push_back(rank < hosts ? rank : random.below(hosts));
  }
  std::ranges::sort(scenario.hosts);
  scenario.heartbeat = milliseconds(random.pick({100, 200, 400}));
  scenario.timeout = milliseconds(random.pick({1'000, 1'500}));
  scenario.kernel = random_kernel(random, hosts, scenario.heartbeat);
  scenario.eager_bytes = static_cast<std::size_t>(random.pick({2'500, 4'000, 65'536}));
  scenario.algorithm = random.pick(
      {messages::Algorithm::automatic, messages::Algorithm::direct, messages::Algorithm::ring});
  scenario.progress_thread = random.chance(40);
  scenario.splits = random.chance(20);
  const int steps = 1 + random.below(6);
  for (int i = 0; i < steps; ++i) scenario.steps.push_back(random_step(random, scenario));
  choose_fault(random, scenario);
  scenario.restarts = !is_harmless(scenario.fault.kind) && random.chance(25);
  if (joining) disturb_joining(random, scenario);
  choose_network(random, scenario);
  return scenario;
}

std::string Scenario::text() const {
  std::string placed;
  for (const int host : hosts) placed += concat(placed.empty() ? "" : ",", host);
  std::string text =
      concat("seed ", seed, ": ", ranks, " ranks on hosts ", placed, over_tcp ? " over TCP" : "",
             known_port ? " by a known port" : "", ", heartbeat ", heartbeat.count(),
             " ms, timeout ", timeout.count(), " ms, ", messages::name(algorithm),
             progress_thread ? ", progress thread" : "", splits ? ", split" : "",
             restarts ? ", restart" : "", "; fault: ", fault_text(fault));
  for (const auto& one : disturbances) text += concat("; while joining: ", fault_text(one));
  text += "; steps:";
  for (const auto& step : steps) {
    text += concat(' ', lockstep::name(step.collective), '(', step.count, ' ',
                   lockstep::name(step.dtype), ", root ", step.root, ')',
                   step.in_split ? " in split" : "", step.overlaps ? " overlapping" : "", ';');
  }
  return text;
}

}  // namespace lockstep::testing
