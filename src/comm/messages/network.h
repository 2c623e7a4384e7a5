#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "comm/cost/cost.h"
#include "comm/messages/options.h"
#include "comm/waiting.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::messages {

/// Members issued different operations. The text is the same on all members.
class Mismatch : public CommError {
 public:
  using CommError::CommError;
};

/// The pieces in which a reduction sends its slices.
struct Pieces {
  std::size_t bytes = 512 << 10;  ///< bytes of the longest piece
  std::size_t window = 4;         ///< number of pieces of a slice in transit at the same time
  /// Collectives without a reduction send their parts in pieces, too.
  bool of_parts = false;
};

/// Non-blocking messages of bytes between all ranks of a world, with what a world needs of a
/// network besides. It has no groups and no collectives. The folder of a network, such as comm/tcp,
/// has one class that derives from it.
///
/// Messages with the same sender, receiver and tag are received in the order in which they were
/// sent. The receiver's buffer has the length of the message. Only an announcement may be shorter
/// than its buffer. No message has 0 bytes. Every function may throw an error of the network.
class Network {
 public:
  /// Called by progress() when a message is complete; bytes is the received length. It may begin
  /// other messages.
  using Done = std::function<void(std::size_t bytes)>;
  /// As `from` of receive(): any rank.
  static constexpr int anyone = -1;

  virtual ~Network() = default;
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  /// Complete when the memory may be written again. This may be before the receiver has the
  /// message.
  virtual void send(const std::byte* data, std::size_t bytes, int to, int tag, Done done) = 0;
  virtual void receive(std::byte* data, std::size_t bytes, int from, int tag, Done done) = 0;

  /// Advances messages, and calls Done for those that are complete. True if there were any.
  virtual bool progress() = 0;

  /// Abandons all messages after a failure. No Done is called any more.
  virtual void stop() noexcept = 0;

  int rank() const { return rank_; }
  int size() const { return size_; }
  int local_size() const { return local_size_; }  ///< ranks on this host
  int last_tag() const { return last_tag_; }      ///< the highest of a message

  /// "mpi", "tcp" or "ucx": the backend's name in texts.
  virtual std::string_view name() const = 0;
  /// The pieces that suit a group on this number of hosts.
  virtual Pieces pieces(int /*hosts*/) const { return {}; }

  /// Whether messages are possible. Any thread.
  virtual bool is_running() const noexcept { return true; }
  /// Throws: InvalidArgument naming the rank if this thread may not use the network.
  virtual void expect_usable_thread() const {}
  /// Whether the end of the network waits for all ranks, so that none may end before.
  virtual bool ends_together() const { return true; }
  /// The world has failed: the end of this process waits for no rank. Any thread.
  virtual void abandon() noexcept {}
  /// Waits until a message may have advanced, for at most `longest`.
  virtual void sleep(std::chrono::nanoseconds longest) {
    std::this_thread::sleep_for(std::min<std::chrono::nanoseconds>(longest, detail::poll_pause));
  }
  /// Ends a sleep(). Any thread.
  virtual void interrupt() noexcept {}

 protected:
  Network() = default;

  int rank_ = 0;
  int size_ = 1;
  int local_size_ = 1;
  int last_tag_ = 0;
};

/// The sender, or Network::anyone, and the tag of a message in one number.
constexpr std::uint64_t key_of(int from, std::int64_t tag) {
  return static_cast<std::uint64_t>(from + 1) << 32 | static_cast<std::uint32_t>(tag);
}

/// Messages that are complete, for a transport whose progress() calls their Done at its end.
class Completions {
 public:
  void add(Network::Done done, std::size_t bytes) { all_.push_back({std::move(done), bytes}); }
  bool empty() const { return all_.empty(); }
  void clear() { all_.clear(); }
  /// Calls and removes them. False if there are none. A call may begin other messages.
  bool call() {
    if (all_.empty()) return false;
    auto calls = std::exchange(all_, std::move(called_));
    for (auto& [done, bytes] : calls) {
      if (done) done(bytes);
    }
    calls.clear();
    called_ = std::move(calls);
    return true;
  }

 private:
  struct Completion {
    Network::Done done;
    std::size_t bytes;
  };
  std::vector<Completion> all_;
  std::vector<Completion> called_;  ///< empty; keeps its memory
};

/// The purpose of a message of a group. Messages of the same group and channel between two ranks
/// arrive in order.
enum class Channel : int {
  announcements,  ///< of collectives, short inputs included
  parts,          ///< inputs of collectives, and partial sums
  results,        ///< results of collectives
  offers,         ///< the terms of send()
  replies,        ///< the terms of recv()
  payloads        ///< the data of send()
};

inline constexpr int channels = 6;

/// Tag 0 belongs to no group.
constexpr int tag_of(int group, Channel channel) {
  return 1 + group * channels + static_cast<int>(channel);
}

constexpr int most_groups(int last_tag) { return last_tag / channels - 1; }

/// The number of a group of some ranks in which they agree on the number of another. A rank is in
/// one such group at a time. The world has number 0.
inline constexpr int agreement_group = 1;

/// One rank's description of a group whose members exchange messages over a network. All fields
/// except rank and network are the same on all members.
struct MessageGroup {
  int rank = 0;
  std::vector<int> members = {};  ///< world ranks in the order of the group
  int number = 0;                 ///< distinguishes its messages from those of other groups
  Placement placement = {};       ///< of the members
  Algorithm algorithm = Algorithm::automatic;
  std::size_t eager_bytes = 0;  ///< longest input that is sent with the announcement
  Pieces pieces = {};
  Network* network = nullptr;

  int size() const { return static_cast<int>(members.size()); }
  int world_rank(int member) const { return members[static_cast<std::size_t>(member)]; }
  /// The number in error texts: 1, 2, …, and 0 for the world and groups of the library.
  int shown_number() const { return std::max(0, number - agreement_group); }

  /// As those of the network, to and from a member.
  void send(const std::byte* data, std::size_t bytes, int member, Channel channel,
            Network::Done done) const {
    network->send(data, bytes, world_rank(member), tag_of(number, channel), std::move(done));
  }
  void receive(std::byte* data, std::size_t bytes, int member, Channel channel,
               Network::Done done) const {
    network->receive(data, bytes, world_rank(member), tag_of(number, channel), std::move(done));
  }
};

}  // namespace lockstep::messages
