#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "comm/control/joining.h"
#include "comm/messages/network.h"
#include "core/system/process.h"

namespace lockstep::inline v0_2::tcp {

/// Messages over TCP, by one stream for each pair of ranks. Note [How messages are sent in streams]
/// is in tcp_transport.cpp. Throws: CommError naming the other rank and the system's error, from
/// any function.
class TcpTransport final : public messages::Network {
 public:
  /// Without streams. local_size: ranks on this host. limit: longest time without a heartbeat.
  TcpTransport(int rank, int size, int local_size,
               std::chrono::milliseconds limit = control::default_heartbeat);

  /// Takes the connected, non-blocking socket to another rank, and the bytes that it has received.
  /// Called once for each, before messages to it.
  void connect(int other, detail::Descriptor stream, std::string_view received);

  std::string_view name() const override { return "tcp"; }
  bool ends_together() const override { return false; }
  messages::Pieces pieces(int hosts) const override;
  void send(const std::byte* data, std::size_t bytes, int to, int tag, Done done) override;
  /// from: `anyone` only for a tag that is received from `anyone` alone.
  void receive(std::byte* data, std::size_t bytes, int from, int tag, Done done) override;
  bool progress() override;
  void stop() noexcept override;
  void sleep(std::chrono::nanoseconds longest) override;
  void interrupt() noexcept override;

 private:
  /// Precedes each message in the stream.
  struct Header {
    std::uint64_t bytes = 0;
    std::int64_t tag = 0;
  };
  struct Outgoing {
    Header header;
    const std::byte* data = nullptr;
    std::size_t sent = 0;  ///< bytes of the header and the data
    Done done = {};
  };
  /// A receive that no message has matched, or a message that no receive has.
  struct Posted {
    std::byte* data = nullptr;
    std::size_t bytes = 0;
    Done done = {};
  };
  struct Arrived {
    std::unique_ptr<std::byte[]> data;
    std::size_t bytes = 0;
    std::size_t missing = 0;             ///< bytes that are still to come
    std::optional<Posted> receive = {};  ///< the receive that takes it when it is whole
  };
  /// The receives and messages of one sender and tag, in order. One of the queues is empty.
  struct Queue {
    std::list<Posted> posted;
    std::list<std::shared_ptr<Arrived>> arrived;
  };
  struct Peer {
    detail::Descriptor stream;
    std::string address;
    std::deque<Outgoing> unsent;
    bool awaits_space = false;  ///< the socket had no space for the first of them
    // The message that is arriving: its header, then its data.
    Header header;
    std::size_t header_bytes = 0;    ///< bytes of the header that have arrived
    std::byte* data = nullptr;       ///< where the next byte belongs
    std::size_t missing = 0;         ///< bytes of data that are still to come
    Posted receive;                  ///< the receive that the message has matched
    std::shared_ptr<Arrived> early;  ///< the message, if no receive has matched it
    std::optional<std::chrono::steady_clock::time_point> closed;  ///< when the stream ended
    int error = 0;  ///< errno of the network; 0 if the other side has closed the stream
  };

  Peer& peer(int rank) { return peers_[static_cast<std::size_t>(rank)]; }
  void write(int to);
  void read(int from);
  /// Takes the bytes that were read from the rank's stream, beyond what went to Peer::data, or that
  /// this rank sends itself.
  void take(int from, const std::byte* data, std::size_t bytes);
  void begin_message(int from);
  /// Counts the bytes that were written to Peer::data. Ends the message with its last byte.
  void advance_message(Peer& peer, std::size_t bytes);
  void watch(int rank, bool for_space);
  /// code: errno; 0 if the other side has closed it.
  void close(int rank, int code);
  void check_closed();
  /// Closes streams whose other side does not acknowledge what was sent.
  void check_silent();

  std::vector<Peer> peers_;
  std::unordered_map<std::uint64_t, Queue> queues_;
  messages::Completions finished_;
  std::unique_ptr<std::byte[]> buffer_;
  detail::Descriptor events_;
  detail::Descriptor wake_event_;
  int closed_ = 0;  ///< number of streams that have ended
  std::chrono::seconds limit_;
  std::chrono::steady_clock::time_point next_check_;  ///< for silent streams
};

}  // namespace lockstep::tcp
