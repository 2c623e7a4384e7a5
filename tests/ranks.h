#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"

namespace lockstep::testing {

using RankFunction = std::function<void(std::shared_ptr<Communicator>)>;

/// Runs fn on n ranks, each a thread over one host world. Rethrows the first failure.
void run_ranks(int n, const RankFunction& fn,
               std::chrono::milliseconds timeout = std::chrono::seconds(20));

/// Names what run_processes can run. A static object in the test's file registers it before main.
class ProcessBody {
 public:
  ProcessBody(std::string name, RankFunction fn);
};

/// The exit of one rank process.
struct Outcome {
  bool exited = false;
  int code = -1;    ///< exit code, or the signal that ended it
  std::string err;  ///< what it wrote to stderr
};

/// Runs the named body on n ranks, each a process: this test program executed again. A body that
/// throws prints what() to stderr and exits 1.
std::vector<Outcome> run_processes(int n, const std::string& name,
                                   std::chrono::milliseconds timeout = std::chrono::seconds(20));

/// The same, expecting that every rank ends with exit code 0.
void expect_processes(int n, const std::string& name);

}  // namespace lockstep::testing
