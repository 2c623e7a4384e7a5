#pragma once

#include <map>
#include <string>
#include <vector>

namespace lockstep::launch {

/// What could not be written of a job's output, and why.
class Losses {
 public:
  /// Of each place the first error counts.
  void add(const std::string& place, int error);

  bool empty() const { return places_.empty(); }
  /// "stdout, logs/rank-0.out: No space left on device".
  std::string text() const;

 private:
  std::map<int, std::vector<std::string>> places_;  ///< by errno
};

}  // namespace lockstep::launch
