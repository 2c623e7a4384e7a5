#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "comm/messages/transport.h"
#include "comm/operation.h"
#include "lockstep/types.h"

namespace lockstep::inline v0_2::messages {

/// The bytes of one collective on their way, once all members have agreed on it.
class Transfer {
 public:
  virtual ~Transfer() = default;
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;

  /// Begins the messages that can begin, and works on what has come.
  virtual void advance() = 0;
  /// All messages have begun, so that those of another transfer may follow.
  virtual bool begun() const = 0;

  /// After advance().
  virtual bool over() const { return begun() && under_way_ == 0; }
  /// Members with whom a message is under way.
  std::vector<int> partners() const;
  /// Time that went into sums.
  std::chrono::nanoseconds worked() const { return worked_; }

 protected:
  Transfer(GroupTransport transport, const Operation& operation);

  const Operation& operation() const { return operation_; }
  int rank() const { return transport_.group().rank; }
  int size() const { return transport_.group().size(); }
  std::size_t element() const { return size_of(operation_.dtype); }
  /// Bytes of an element as it is sent.
  std::size_t wire_element() const { return size_of(operation_.travels_as()); }

  const Pieces& pieces() const { return transport_.group().pieces; }

  /// Messages of no bytes are over at once. *flag, if given, becomes 1 when the message is over.
  void send(const std::byte* data, std::size_t bytes, int member, Channel channel,
            std::uint8_t* flag = nullptr);
  void receive(std::byte* data, std::size_t bytes, int member, Channel channel,
               std::uint8_t* flag = nullptr);

  std::chrono::nanoseconds worked_{};

 private:
  void ended(int member, std::uint8_t* flag);

  GroupTransport transport_;
  const Operation& operation_;
  std::size_t under_way_ = 0;
  std::vector<std::uint32_t> with_;  ///< messages under way with each member
};

/// The transfer of an operation whose inputs were not sent with the announcements.
std::unique_ptr<Transfer> make_transfer(GroupTransport transport, const Operation& operation);

/// Parts that go from member to member as they are: all_gather, gather, scatter, all_to_all.
std::unique_ptr<Transfer> make_moves(GroupTransport transport, const Operation& operation);
/// Root gives each other member a slice, and all of them give theirs to one another.
std::unique_ptr<Transfer> make_broadcast(GroupTransport transport, const Operation& operation);
/// all_reduce and reduce_scatter: each member receives all parts of its slice and sums them.
std::unique_ptr<Transfer> make_direct_reduction(GroupTransport transport,
                                                const Operation& operation);
/// all_reduce: each slice's sum passes around from rank to rank, and so does its result.
std::unique_ptr<Transfer> make_ring_reduction(GroupTransport transport, const Operation& operation);
/// Whether partial sums lose nothing that one sum keeps, so that a ring may make them.
bool sums_in_parts(const Operation& operation);

using detail::Range;
using detail::slice_of;

}  // namespace lockstep::messages
