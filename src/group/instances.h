#pragma once

#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "lockstep/group.h"

namespace lockstep::inline v0_2::detail {

/// The T of a group on this rank, which all callers share. It is made, of args, when there is none,
/// and lives as long as one of them holds it. Any thread.
template <class T, class... Args>
std::shared_ptr<T> per_group(const Group& group, const Args&... args) {
  // Never destroyed: a T may outlive any static object.
  static auto& mutex = *new std::mutex;
  static auto& all = *new std::unordered_map<const Communicator*, std::weak_ptr<T>>;
  const std::lock_guard lock(mutex);
  std::erase_if(all, [](const auto& entry) { return entry.second.expired(); });
  auto& entry = all[&group.communicator()];
  auto found = entry.lock();
  if (found == nullptr) entry = found = std::make_shared<T>(args...);
  return found;
}

/// The objects of a class that this process has, as their constructors and destructors list them.
/// Locked while it exists. Any thread.
template <class T>
struct Instances {
  std::unique_lock<std::mutex> lock;
  std::vector<T*>& list;

  static Instances all() {
    // Never destroyed: a T may outlive any static object.
    static auto& mutex = *new std::mutex;
    static auto& list = *new std::vector<T*>;
    return {.lock = std::unique_lock(mutex), .list = list};
  }
};

}  // namespace lockstep::detail
