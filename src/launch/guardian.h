#pragma once

#include <sys/types.h>

#include <optional>

#include "launch/ending.h"
#include "launch/system.h"

namespace lockstep::inline v0_2::launch {

/// A process that kills every rank's process group if the launcher is killed. The kernel's
/// parent-death signal is sent to direct children only, and a rank may be a shell.
class Guardian {
 public:
  /// Starts the process.
  /// Throws: CommError if it cannot be started.
  Guardian();
  /// Ends the guardian process only.
  ~Guardian();
  Guardian(const Guardian&) = delete;
  Guardian& operator=(const Guardian&) = delete;

  /// The descriptor to which a rank writes its process group (one pid_t) before it executes its
  /// program.
  int registry() const { return registry_.get(); }
  /// Registers the process group of a rank that was started before this guardian.
  void add(pid_t group) const noexcept;

  pid_t pid() const { return pid_; }
  /// How the process has ended; nullopt if it runs. It never ends by itself.
  std::optional<Ending> ending() const;

 private:
  Descriptor registry_;
  pid_t pid_ = -1;
};

}  // namespace lockstep::launch
