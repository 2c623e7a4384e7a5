#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <vector>

#include "lockstep/group.h"

namespace lockstep::testing {

struct AdaptedOptions {
  /// By which ranks tell one another of failures; one of their own unless said.
  c10::intrusive_ptr<c10d::Store> store = c10::make_intrusive<c10d::HashStore>();
  std::chrono::milliseconds timeout = std::chrono::seconds(20);
  /// The option of each rank; the default of group_from_backend() if empty.
  std::function<bool(int rank)> flush_denormals = {};
};

/// Runs fn on n ranks, each a thread with a Group over a MemoryBackend. Returns each rank's error,
/// "" if it threw nothing.
std::vector<std::string> what_adapted_ranks_threw(int n, const std::function<void(Group)>& fn,
                                                  const AdaptedOptions& options = {});

/// fields_of() the error that fn threw on each rank.
std::vector<std::string> fields_adapted_ranks_threw(int n, const std::function<void(Group)>& fn,
                                                    const AdaptedOptions& options = {});

/// The same, expecting that none throws.
void expect_adapted_ranks(int n, const std::function<void(Group)>& fn);

}  // namespace lockstep::testing
