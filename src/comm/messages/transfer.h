#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "comm/messages/network.h"
#include "comm/operation.h"
#include "comm/tasks/task.h"
#include "lockstep/types.h"

namespace lockstep::inline v0_2::messages {

using detail::Range;
using detail::slice_of;

/// The exchange of a collective's long inputs and results, after all members have announced the
/// same collective.
class Transfer {
 public:
  virtual ~Transfer() = default;
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;

  /// Begins the messages that can begin, and processes those that have arrived.
  void advance();
  /// Whether all messages have begun, so that another transfer may begin its own.
  bool begun() const { return all_finished(tasks_); }
  /// Whether the transfer is complete. Call it after advance().
  bool finished() const { return begun() && pending_ == 0 && all_finished(final_); }
  /// Members with whom a message is pending.
  std::vector<int> partners() const;
  /// Time in which this rank has reduced.
  std::chrono::nanoseconds worked() const { return worked_; }

 protected:
  Transfer(const MessageGroup& group, const Operation& operation);

  const Operation& operation() const { return operation_; }
  int rank() const { return group_.rank; }
  int size() const { return group_.size(); }
  std::size_t element() const { return size_of(operation_.dtype); }
  /// Bytes of an element in the wire dtype.
  std::size_t wire_element() const { return size_of(operation_.wire_dtype()); }

  const Pieces& pieces() const { return group_.pieces; }
  /// The address of a range of the output.
  std::byte* place_of(const Range& range) const {
    return operation_.output + range.begin * element();
  }
  /// Piece `index` of a slice whose pieces have `elements`; empty behind the last one.
  static Range piece_of(const Range& slice, std::size_t index, std::size_t elements) {
    const std::size_t begin = std::min(index * elements, slice.length);
    return {.begin = slice.begin + begin, .length = std::min(elements, slice.length - begin)};
  }

  /// Runs a task that begins messages.
  void run(detail::Task task) { tasks_.push_back(std::move(task)); }
  /// Runs a task that begins none.
  void run_final(detail::Task task) { final_.push_back(std::move(task)); }

  /// Begins a message. A message of 0 bytes is complete at once. *flag, if given, becomes 1 when
  /// the message is complete.
  void send(const std::byte* data, std::size_t bytes, int member, Channel channel,
            std::uint8_t* flag = nullptr);
  void receive(std::byte* data, std::size_t bytes, int member, Channel channel,
               std::uint8_t* flag = nullptr);

  std::chrono::nanoseconds worked_{};

 private:
  /// Counts a message that begins. Its Done; none for a message of 0 bytes, which is complete.
  Network::Done count(std::size_t bytes, int member, std::uint8_t* flag);
  static bool all_finished(const std::vector<detail::Task>& tasks) {
    return std::ranges::all_of(tasks, &detail::Task::finished);
  }

  const MessageGroup& group_;
  const Operation& operation_;
  std::vector<detail::Task> tasks_;
  std::vector<detail::Task> final_;
  std::size_t pending_ = 0;
  std::vector<std::uint32_t> pending_with_;  ///< pending messages with each member
};

/// Creates the transfer of an operation whose inputs are not eager.
std::unique_ptr<Transfer> make_transfer(const MessageGroup& group, const Operation& operation);

/// Transfer of all_reduce, reduce and reduce_scatter: each member receives all inputs of its slice
/// and reduces them. It sends the result to all members or to root, or keeps it.
std::unique_ptr<Transfer> make_direct_reduction(const MessageGroup& group,
                                                const Operation& operation);
/// Transfer of all_reduce: the partial sum of each slice passes around a ring, then the result
/// does.
std::unique_ptr<Transfer> make_ring_reduction(const MessageGroup& group,
                                              const Operation& operation);

}  // namespace lockstep::messages
