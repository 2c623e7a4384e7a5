#include "device/host_memory_communicator.h"

#include <exception>
#include <utility>

namespace lockstep::inline v0_2::device {

std::shared_ptr<Communicator> HostMemoryCommunicator::split(int color, int key) {
  // A split of the host world blocks without advancing other operations. After this barrier all
  // members are in split(), so it cannot deadlock.
  barrier().wait();
  const detail::RankContext::CallGuard guard(context());
  auto part = context().or_fail<std::exception>([&] { return host().split(color, key); });
  if (part == nullptr) return nullptr;
  return handle(std::make_shared<HostMemoryCommunicator>(shared_device_context(), std::move(part)));
}

}  // namespace lockstep::device
