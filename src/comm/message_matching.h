#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/announcement.h"
#include "comm/backend_communicator.h"
#include "comm/operation.h"
#include "core/text.h"
#include "lockstep/types.h"

// Note [How receives are matched]
// A rank takes messages of a member only while it has an open receive from that member, or from
// any. Then it takes every message of the member. The message completes the first open receive of
// its source and tag. If there is none, the rank keeps a copy, so that the sender can go on to the
// message that a receive waits for: an early message. A new receive looks at the early messages
// first. Messages of one pair are therefore matched in the order in which they were sent.
// After each message, the members are looked at from another one on, so that no member can keep the
// messages of the others from a receive of any source.

namespace lockstep::inline v0_2::detail {

/// Whether a recv takes messages from this member.
inline bool accepts(const Operation& receive, int source) {
  return receive.peer == any_source || receive.peer == source;
}
/// Whether it takes messages with this tag, too.
inline bool accepts(const Operation& receive, int source, std::uint32_t tag) {
  return accepts(receive, source) && (receive.issue.in_order || receive.tag == tag);
}

/// The members that a recv from any source waits for: the others that have not left well, or all
/// others if they have. A member that is alone waits for itself.
inline std::vector<int> possible_senders(int members, int own,
                                         const std::function<bool(int member)>& left_well) {
  std::vector<int> others, present;
  for (int member = 0; member < members; ++member) {
    if (member != own || members == 1) others.push_back(member);
  }
  std::ranges::remove_copy_if(others, std::back_inserter(present), left_well);
  return present.empty() ? others : present;
}

/// A message that was taken from its sender.
struct TakenMessage {
  int source;
  MessageTerms terms;
  std::unique_ptr<std::byte[]> data;  ///< a copy, if no receive expected the message
};

/// The open receives of one rank in a group, and its early messages. Receive points to an object
/// with operation(), Message to a TakenMessage.
template <class Receive, class Message>
class MessageMatching {
 public:
  explicit MessageMatching(int members) : open_(static_cast<std::size_t>(members)) {}

  /// Removes the first early message that the receive takes and returns it; null if there is none.
  Message take_message(const Operation& receive) {
    const auto found = std::ranges::find_if(early_, [&](const Message& message) {
      return accepts(receive, message->source, message->terms.tag);
    });
    if (found == early_.end()) return {};
    Message message = std::move(*found);
    early_.erase(found);
    return message;
  }
  void keep(Message message) { early_.push_back(std::move(message)); }

  /// Opens a receive.
  void add(Receive receive) {
    const int peer = receive->operation().peer;
    receives_.push_back(std::move(receive));
    if (peer == any_source) {
      ++from_any_;
    } else if (open_[static_cast<std::size_t>(peer)]++ == 0) {
      sources_.push_back(peer);
    }
  }
  /// Removes the first open receive that takes the message and returns it; null if there is none.
  Receive take_receive(int source, std::uint32_t tag) {
    return remove(std::ranges::find_if(receives_, [&](const Receive& receive) {
      return accepts(receive->operation(), source, tag);
    }));
  }
  /// Removes the receive of this operation. Returns whether it was open.
  bool withdraw(const Operation& receive) {
    return remove(std::ranges::find_if(receives_, [&](const Receive& open) {
             return &open->operation() == &receive;
           })) != nullptr;
  }

  bool has_open() const { return !receives_.empty(); }
  /// Number of open receives that take messages from the member.
  std::size_t open(int source) const { return from_any_ + open_[static_cast<std::size_t>(source)]; }

  /// Calls take(source) for each member from which a receive is open. take() returns whether it has
  /// taken a message. It may remove receives from the member.
  template <class Take>
  void for_each_source(const Take& take) {
    if (from_any_ == 0) {
      // From the last on, because take() may remove the entry that was read.
      for (auto i = sources_.size(); i-- > 0;) take(sources_[i]);
      return;
    }
    const int size = static_cast<int>(open_.size());
    for (int i = 0, first = first_; i < size; ++i) {
      const int source = (first + i) % size;
      if (open(source) > 0 && take(source)) first_ = source + 1;
    }
  }

  /// ", expected tag 8, got tag 7 from rank 0" for the early messages from the sources of the
  /// receive; "" for none. Senders are named by their world ranks.
  std::string describe_early(const Operation& receive,
                             const std::function<int(int member)>& world_rank) const {
    constexpr std::size_t most = 4;
    std::vector<std::string> messages;
    for (const auto& message : early_) {
      if (!accepts(receive, message->source)) continue;
      const int sender = world_rank(message->source);
      messages.push_back(concat("tag ", message->terms.tag, " from rank ", sender));
    }
    if (messages.empty()) return {};
    const auto count = messages.size();
    messages.resize(std::min(count, most));
    return concat(", expected tag ", receive.tag, ", got ", joined(messages, ", "),
                  count > most ? concat(" and ", count - most, " more") : "");
  }

  /// Forgets the open receives.
  void close_all() {
    receives_.clear();
    sources_.clear();
    std::ranges::fill(open_, 0);
    from_any_ = 0;
  }

 private:
  Receive remove(typename std::vector<Receive>::iterator at) {
    if (at == receives_.end()) return {};
    Receive receive = std::move(*at);
    receives_.erase(at);
    const int peer = receive->operation().peer;
    if (peer == any_source) {
      --from_any_;
    } else if (--open_[static_cast<std::size_t>(peer)] == 0) {
      std::erase(sources_, peer);
    }
    return receive;
  }

  std::vector<Receive> receives_;  ///< open, in the order in which they were issued
  std::vector<std::size_t> open_;  ///< open receives from each member
  std::vector<int> sources_;       ///< members with such receives
  std::size_t from_any_ = 0;       ///< open receives from any source
  int first_ = 0;                  ///< the member that is looked at first for any source
  std::deque<Message> early_;      ///< in the order in which they came
};

/// A receive of this rank, which its group completes. Group has matching(), a MessageMatching, and
/// left_well(member).
template <class Group>
class ReceiveRequest : public GroupRequest<Group> {
 public:
  using GroupRequest<Group>::GroupRequest;

  void advance() override {}
  /// For a receive from any source: the ranks that may still send.
  std::vector<int> missing() const override {
    const auto& group = this->group();
    const int from = this->operation().peer == any_source ? matched_ : this->operation().peer;
    if (from != any_source) return {group.world_rank(from)};
    auto ranks = possible_senders(group.size(), group.rank(),
                                  [&](int member) { return group.left_well(member); });
    for (int& rank : ranks) rank = group.world_rank(rank);
    return ranks;
  }
  /// Names messages with other tags that this rank has got.
  std::string note() const override {
    auto& group = this->group();
    return group.matching().describe_early(this->operation(),
                                           [&](int member) { return group.world_rank(member); });
  }

  /// Sets the member whose message it gets.
  void match(int source) { matched_ = source; }
  /// Completes the receive after match().
  void finish() {
    this->set_source(matched_);
    this->set_complete();
  }

 private:
  bool withdraw() override { return this->group().matching().withdraw(this->operation()); }

  int matched_ = any_source;
};

}  // namespace lockstep::detail
