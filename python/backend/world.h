#pragma once

#include <chrono>
#include <memory>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "comm/communicator.h"

namespace lockstep_torch {

/// Creates or joins the world of a process group's members, which find each other through the store
/// of that group. Every member calls it.
/// Throws: c10::DistBackendError on every rank if the members are not all on one host, and if a
/// member did not call it in time.
std::shared_ptr<lockstep::Communicator> join_world(const c10::intrusive_ptr<c10d::Store>& store,
                                                   int rank, int size,
                                                   std::chrono::milliseconds timeout);

}  // namespace lockstep_torch
