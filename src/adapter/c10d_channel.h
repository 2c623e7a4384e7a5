#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "adapter/c10d_rank_context.h"

namespace lockstep::inline v0_2::adapter {

/// The purpose of a group's message. Messages of one kind between two ranks arrive in order.
enum class Kind : int {
  announcements,  ///< of collectives
  parts,          ///< inputs of collectives
  results,        ///< what became of them
  offers,         ///< announcements of send()
  replies,        ///< what recv() expects
  payloads        ///< what send() sends
};

inline constexpr int kinds = 6;

/// One group's messages in the backend: between members, told from those of other groups by their
/// tags.
class Channel {
 public:
  /// members are ranks of the backend in the order of the group.
  Channel(std::shared_ptr<RankContext> context, std::vector<int> members, int rank, int number)
      : context_(std::move(context)), members_(std::move(members)), rank_(rank), number_(number) {}

  RankContext& context() const { return *context_; }
  int rank() const { return rank_; }
  int size() const { return static_cast<int>(members_.size()); }
  std::span<const int> members() const { return members_; }
  int world_rank(int member) const { return members_[static_cast<std::size_t>(member)]; }

  Message to(int member, Kind kind, const std::byte* data, std::size_t bytes) const {
    // c10d has no tensors of const memory; nothing writes to what is sent.
    return {Message::Way::send, world_rank(member), tag(kind), const_cast<std::byte*>(data), bytes};
  }
  Message from(int member, Kind kind, std::byte* data, std::size_t bytes) const {
    return {Message::Way::receive, world_rank(member), tag(kind), data, bytes};
  }

 private:
  int tag(Kind kind) const { return number_ * kinds + static_cast<int>(kind); }

  std::shared_ptr<RankContext> context_;
  std::vector<int> members_;
  int rank_;
  int number_;
};

}  // namespace lockstep::adapter
