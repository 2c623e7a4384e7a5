#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "comm/messages/network.h"

namespace lockstep::inline v0_2::ucx {

/// Whether this host has a device that UCX serves better than TCP does: InfiniBand or RoCE, with a
/// port that is active.
bool has_device();

/// Why UCX cannot be used here, or empty.
std::string available();

/// Messages over UCX. Throws: CommError naming the other rank and UCX's error, from any function.
class Ucx : public messages::Network {
 public:
  /// The bytes by which other ranks connect to this one.
  virtual std::string address() const = 0;
  /// Connects to a rank, also this one, by its address(). Called once for each, before messages to
  /// it.
  virtual void connect(int other, std::string_view address) = 0;
  /// Number of ranks on this host.
  void set_local_size(int ranks) { local_size_ = ranks; }
};

/// Loads UCX. Without connections.
/// Throws: BackendUnavailable if UCX cannot be used, or if the build has none.
std::unique_ptr<Ucx> create(int rank, int size);

}  // namespace lockstep::ucx
