#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include "lockstep/comm/communicator.h"

namespace lockstep::testing {

/// A group as it would be on hosts of their own: the same collectives, but no rank can reach
/// another's memory. Of collectives those that strategies use. Counts what is asked of its memory.
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
    Issue issue{.shape = std::move(operation.shape), .owner = std::move(operation.owner)};
    switch (operation.collective) {
      case Collective::barrier:
        return ranks_.barrier(std::move(issue));
      case Collective::all_reduce:
        return operation.wire
                   ? ranks_.all_reduce(operation.output, operation.count, operation.reduce,
                                       *operation.wire, std::move(issue))
                   : ranks_.all_reduce(operation.output, operation.count, operation.dtype,
                                       operation.reduce, std::move(issue));
      case Collective::all_gather:
        if (!operation.counts.empty()) {
          return ranks_.all_gather(operation.input, operation.output,
                                   std::span<const std::size_t>(operation.counts), operation.dtype,
                                   std::move(issue));
        }
        return ranks_.all_gather(operation.input, operation.output, operation.count,
                                 operation.dtype, std::move(issue));
      case Collective::all_to_all:
        return ranks_.all_to_all(operation.input, operation.output, operation.count,
                                 operation.dtype, std::move(issue));
      default:
        ADD_FAILURE() << name(operation.collective) << " is not passed on";
        return {};
    }
  }

  Communicator& ranks_;
  int allocations_ = 0;
};

}  // namespace lockstep::testing
