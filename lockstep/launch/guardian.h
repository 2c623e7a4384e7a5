#pragma once

#include <sys/types.h>

#include "lockstep/launch/descriptor.h"

namespace lockstep::launch {

/// A small process that outlives the launcher by a moment when the launcher dies without a chance
/// to clean up: it then kills every rank's process group. The kernel's own parent-death signal
/// reaches direct children only, and a rank may be a shell.
class Guardian {
 public:
  /// Throws: CommError when no process can be started.
  Guardian();
  ~Guardian();
  Guardian(const Guardian&) = delete;
  Guardian& operator=(const Guardian&) = delete;

  /// Where a rank, before it executes anything, writes its process group (one pid_t).
  int registry() const { return registry_.get(); }

  pid_t pid() const { return pid_; }

  /// The job is over: ends the guardian. Nothing is killed.
  void dismiss() noexcept;

 private:
  Descriptor registry_;
  pid_t pid_ = -1;
};

}  // namespace lockstep::launch
