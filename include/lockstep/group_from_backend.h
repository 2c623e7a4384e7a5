#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <optional>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "lockstep/group.h"

namespace c10d {
class Backend;
}  // namespace c10d

namespace lockstep::inline v0_2 {

struct GroupFromBackendOptions {
  /// The store through which ranks report a failure that ended the world. The backend's own store
  /// will do if it has compareSet(), as TCPStore, FileStore and HashStore have. Without a store the
  /// others notice a failure as their backend does, or by their timeout.
  c10::intrusive_ptr<c10d::Store> store = {};
  std::optional<std::chrono::milliseconds> timeout =
      {};  ///< longest wait; default LOCKSTEP_TIMEOUT, else 10 minutes
  /// As InitOptions::flush_denormals; by default left as init() or spawn() has set it before.
  std::optional<bool> flush_denormals = {};
};

/// The ranks of a c10d::Backend (Gloo's, UCC's, one's own) as a Group on CPU. The backend moves
/// bytes, and needs send() and recv() with tags for that. Lockstep computes the sums, in the order
/// of ranks, with the same bits as the host backend. The backend is the Group's from here on.
/// Ranks: called by all of them. Throws: InvalidArgument without a backend, or when ranks treat
/// denormals differently; CommError and TimeoutError as a collective does, as when a backend cannot
/// send or ranks run other versions of Lockstep.
Group group_from_backend(c10::intrusive_ptr<c10d::Backend> backend,
                         const GroupFromBackendOptions& options = {});

}  // namespace lockstep
