#pragma once

#include <sys/types.h>

#include <optional>

#include "launch/ending.h"
#include "launch/system.h"

namespace lockstep::inline v0_2::launch {

/// A small process that outlives the launcher by a moment when the launcher dies without a chance
/// to clean up: it then kills every rank's process group. The kernel's own parent-death signal
/// reaches direct children only, and a rank may be a shell.
class Guardian {
 public:
  /// Throws: CommError when no process can be started.
  Guardian();
  /// Ends it. Nothing else is killed.
  ~Guardian();
  Guardian(const Guardian&) = delete;
  Guardian& operator=(const Guardian&) = delete;

  /// Where a rank, before it executes anything, writes its process group (one pid_t).
  int registry() const { return registry_.get(); }
  /// The same, of a rank that has been started before this guardian.
  void add(pid_t group) const noexcept;

  pid_t pid() const { return pid_; }
  /// How it ended, which is none of its own doing, or empty while it runs.
  std::optional<Ending> ending() const;

 private:
  Descriptor registry_;
  pid_t pid_ = -1;
};

}  // namespace lockstep::launch
