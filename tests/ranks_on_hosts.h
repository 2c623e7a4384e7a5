#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "comm/cost/cost.h"

namespace lockstep::testing {

/// A group of threads that is said to be on these hosts: the same collectives, but no rank can
/// reach another's memory, also on one host. Counts what is asked of its memory. A split that has
/// ranks of one host only is an ordinary group.
class OnHosts final : public Communicator {
 public:
  OnHosts(Communicator& ranks, std::vector<int> hosts)
      : Communicator(ranks.rank(), ranks.size()), ranks_(ranks) {
    set_hosts(std::move(hosts));
  }
  explicit OnHosts(std::shared_ptr<Communicator> ranks, std::vector<int> hosts)
      : OnHosts(*ranks, std::move(hosts)) {
    held_ = std::move(ranks);
  }

  std::string_view backend() const override { return "on hosts"; }
  std::shared_ptr<std::byte> allocate(std::size_t bytes) override {
    ++allocations_;
    return ranks_.allocate(bytes);
  }
  int allocations() const { return allocations_; }
  std::shared_ptr<Communicator> split(int color, int key) override {
    auto made = ranks_.split(color, key);
    if (made == nullptr) return nullptr;
    const auto own = static_cast<std::int64_t>(hosts()[static_cast<std::size_t>(rank())]);
    std::vector<std::uint64_t> host_ids(static_cast<std::size_t>(made->size()));
    made->all_gather(&own, host_ids.data(), 1, DType::i64).wait();
    auto hosts_of_made = lockstep::detail::numbered_hosts(host_ids);
    if (std::ranges::max(hosts_of_made) == 0) return made;
    return std::make_shared<OnHosts>(std::move(made), std::move(hosts_of_made));
  }
  void fail(std::string_view cause) noexcept override { ranks_.fail(cause); }

 private:
  Work begin(Operation&& operation) override {
    number(operation);
    return ranks_.reissue(operation);
  }

  Communicator& ranks_;
  std::shared_ptr<Communicator> held_;
  int allocations_ = 0;
};

}  // namespace lockstep::testing
