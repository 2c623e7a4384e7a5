#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

namespace lockstep::inline v0_2::launch {

/// The output of a job that could not be written, and the causes.
class Losses {
 public:
  /// Of each place the first error counts, as errno.
  void add(const std::string& place, int error);
  /// Bytes that no reader took.
  void add_unread(const std::string& place, std::size_t bytes);

  bool empty() const { return places_.empty(); }
  /// "stdout, logs/rank-0.out: No space left on device; stderr: its reader did not take 80 bytes".
  std::string text() const;

 private:
  std::map<std::string, std::vector<std::string>> places_;  ///< by reason
};

}  // namespace lockstep::launch
