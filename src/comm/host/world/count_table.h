#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "comm/operation.h"

namespace lockstep::inline v0_2::host {

/// The counts of one member of an all_to_all whose counts differ between ranks. The table is at the
/// beginning of the member's eager slot. It has where each part of the member's input begins, and
/// how many elements the member expects from each other.
class CountTable {
 public:
  CountTable(std::byte* slot, int members)
      : begins_(reinterpret_cast<std::uint64_t*>(slot)), expected_(begins_ + members + 2) {}

  static std::size_t bytes(int members) {
    return (2 * static_cast<std::size_t>(members) + 2) * sizeof(std::uint64_t);
  }

  void write(const Operation& operation) const {
    const auto sent = operation.input_counts();
    const auto expected = operation.output_counts();
    std::uint64_t begin = 0;
    for (std::size_t member = 0; member < sent.size(); ++member) {
      begins_[member] = begin;
      begin += sent[member];
      expected_[member] = expected[member];
    }
    begins_[sent.size()] = begin;
    begins_[sent.size() + 1] = std::ranges::max(sent);
  }

  /// Elements of the member's input before its part for another member.
  std::size_t begin(int member) const { return begins_[member]; }
  std::uint64_t sent(int member) const { return begins_[member + 1] - begins_[member]; }
  std::uint64_t expected(int member) const { return expected_[member]; }
  /// Elements of the longest part of the member's input.
  std::size_t longest() const { return expected_[-1]; }

 private:
  std::uint64_t* begins_;
  std::uint64_t* expected_;
};

}  // namespace lockstep::host
