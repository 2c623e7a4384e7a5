#pragma once

#include <mutex>
#include <vector>

namespace lockstep::inline v0_2::detail {

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
