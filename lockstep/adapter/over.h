#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <optional>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "lockstep/group.h"

namespace c10d {
class Backend;
}  // namespace c10d

namespace lockstep {

struct OverOptions {
  /// By which ranks tell one another what ended the world: the one that the backend was made with
  /// will do if it has compareSet(), as TCPStore, FileStore and HashStore have. Without it the
  /// others hear of a failure as their backend does, or when they have waited for too long.
  c10::intrusive_ptr<c10d::Store> store = {};
  std::optional<std::chrono::milliseconds> timeout =
      {};  ///< longest wait; default LOCKSTEP_TIMEOUT, else 10 minutes
};

/// The ranks of a c10d::Backend (Gloo's, UCC's, one's own) as a Group on CPU. The backend moves
/// bytes, and needs send() and recv() with tags for that; sums are Lockstep's, in the order of
/// ranks, and have the bits of the host backend. The backend is the Group's from here on.
/// Ranks: called by all of them. Throws: InvalidArgument without a backend; CommError and
/// TimeoutError as a collective does, as when a backend cannot send or ranks run other versions of
/// Lockstep.
Group over(c10::intrusive_ptr<c10d::Backend> backend, const OverOptions& options = {});

}  // namespace lockstep
