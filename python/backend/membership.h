#pragma once

#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "comm/communicator.h"

namespace lockstep_torch {

/// The members of a process group, as one of them sees them.
struct Membership {
  int rank = 0;
  int size = 1;
  /// The group's name, which is the same on all members and differs from those of the other groups.
  std::string name = {};
  /// The ranks of the members in the default group; empty for the default group.
  std::vector<int> ranks = {};
};

/// The world of a process group.
struct World {
  std::shared_ptr<lockstep::Communicator> communicator;
  /// Guards the communicator. Groups over MPI share one, because one thread at a time may use MPI.
  std::shared_ptr<std::mutex> mutex = std::make_shared<std::mutex>();
};

/// The error that ended the world; nullopt while there is none, and without a communicator.
std::optional<std::string> failure_of(const World& world);

/// Creates or joins the world of a process group's members. Every member calls it. Members find
/// each other through the store, or by the name of the default group: Note [How members find each
/// other] in membership.cpp.
/// Throws: c10::DistBackendError on every rank if a member's process has ended, and if a member did
/// not call it in time; what a signal raises in the interpreter, as Ctrl-C does, while members wait
/// for each other.
World join_world(const c10::intrusive_ptr<c10d::Store>& store, const Membership& membership,
                 std::chrono::milliseconds timeout);

}  // namespace lockstep_torch
