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
  /// The store in which a rank publishes the failure that ended the world. The backend's own store
  /// can be used if it implements compareSet(), as TCPStore, FileStore and HashStore do. Without a
  /// store, ranks detect the failure of another rank by an error of the backend or by the timeout.
  c10::intrusive_ptr<c10d::Store> store = {};
  std::optional<std::chrono::milliseconds> timeout =
      {};  ///< longest wait for other ranks; default LOCKSTEP_TIMEOUT, else 10 minutes
  /// As InitOptions::flush_denormals; default: the setting that init() or spawn() made.
  std::optional<bool> flush_denormals = {};
};

/// The ranks of a c10d::Backend (Gloo, UCC or a user's own) as a Group on CPU. The backend sends
/// and receives bytes; it must implement send() and recv() with tags. Lockstep computes the
/// reductions in rank order, with the same bits as the host backend. The program must not use the
/// backend afterwards.
/// Ranks: all ranks of the backend.
/// Throws: InvalidArgument if backend is null or ranks disagree on denormals. CommError and
/// TimeoutError as a collective does, also if the backend cannot send or ranks run different
/// versions of Lockstep.
Group group_from_backend(c10::intrusive_ptr<c10d::Backend> backend,
                         const GroupFromBackendOptions& options = {});

}  // namespace lockstep
