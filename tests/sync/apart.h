#pragma once

#include <cstddef>
#include <memory>
#include <string_view>

#include "comm/communicator.h"

namespace lockstep::testing {

/// A group as it would be on hosts of their own: the same collectives, but no rank can reach
/// another's memory. Counts what is asked of its memory.
class Apart final : public Communicator {
 public:
  explicit Apart(Communicator& ranks) : Communicator(ranks.rank(), ranks.size()), ranks_(ranks) {}

  std::string_view backend() const override { return "apart"; }
  std::shared_ptr<std::byte> allocate(std::size_t bytes) override {
    ++allocations_;
    return ranks_.allocate(bytes);
  }
  int allocations() const { return allocations_; }
  std::shared_ptr<Communicator> split(int, int) override { return nullptr; }
  void fail(std::string_view cause) noexcept override { ranks_.fail(cause); }

 private:
  Work begin(Operation&& operation) override {
    number(operation);
    return ranks_.reissue(operation);
  }

  Communicator& ranks_;
  int allocations_ = 0;
};

}  // namespace lockstep::testing
