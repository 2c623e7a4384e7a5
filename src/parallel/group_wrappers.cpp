#include "parallel/group_wrappers.h"

#include <mutex>
#include <unordered_map>

#include "comm/communicator.h"

namespace lockstep::inline v0_2::detail {

std::shared_ptr<GroupWrappers> GroupWrappers::of(const Group& group) {
  // Never destroyed: wrappers may outlive any static object.
  static auto& mutex = *new std::mutex;
  static auto& all = *new std::unordered_map<const Communicator*, std::weak_ptr<GroupWrappers>>;
  const std::lock_guard lock(mutex);
  std::erase_if(all, [](const auto& entry) { return entry.second.expired(); });
  auto& entry = all[&group.communicator()];
  auto found = entry.lock();
  if (found == nullptr) entry = found = std::make_shared<GroupWrappers>();
  return found;
}

bool GroupWrappers::begin(const void* exchange) {
  if (first_ == nullptr) first_ = exchange;
  return first_ == exchange;
}

void GroupWrappers::end(const void* exchange) {
  if (first_ == exchange) first_ = nullptr;
}

}  // namespace lockstep::detail
