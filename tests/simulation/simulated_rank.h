#pragma once

#include <optional>

#include "comm/control/joining.h"
#include "tests/simulation/scenario.h"

namespace lockstep::testing {

/// How a rank has ended.
struct RankOutcome {
  enum class State { running, succeeded, failed };

  State state = State::running;
  bool created = false;  ///< it has joined its world
  Time ended_at{};       ///< of the error that its program got, or of the last operation's end
  int named = -1;        ///< the rank that the error names
  bool timeout = false;  ///< a TimeoutError
  std::string cause;     ///< the world's first failure, according to the error
  std::string text;      ///< of the error
  std::string wrong;     ///< results that differ, files and threads that are left
};

/// The data that the launcher of a job over TCP gives to its ranks.
struct SimulatedMeeting {
  control::Token token{};
  std::optional<control::Offer> offer = {};  ///< of rank 0, without a known port
};

/// Rank 0's port, if all ranks know it.
inline constexpr std::uint16_t known_port = 19999;

/// The program of one rank: joins the world by mpi::create() or tcp::create(), runs the scenario's
/// operations, compares their results, and leaves. on_fault is called when a fault in the program
/// begins. Called in a simulated thread.
void run_rank(const Scenario& scenario, int rank, bool with_fault, SimulatedMeeting& meeting,
              RankOutcome& outcome, const std::function<void()>& on_fault);

/// Another program that connects to the ports of rank 0's host from this one on, and sends these
/// bytes.
void run_stranger(int host_of_rank_0, std::uint16_t first_port, const std::string& bytes);

}  // namespace lockstep::testing
