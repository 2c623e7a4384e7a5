#pragma once

#include <poll.h>
#include <sys/epoll.h>

#include <cerrno>

#include "tests/simulation/simulated_network.h"
#include "tests/simulation/simulated_process.h"

namespace lockstep::testing {

constexpr std::uint32_t loopback = 0x7f000001;

/// An open file of a simulated process. Calls return as the kernel's do: a result, or minus an
/// errno.
class SimulatedFile {
 public:
  virtual ~SimulatedFile() = default;
  SimulatedFile(const SimulatedFile&) = delete;
  SimulatedFile& operator=(const SimulatedFile&) = delete;

  /// The events that poll() reports.
  virtual short ready() const = 0;
  virtual void close() {}
  /// Its host has lost power: nothing is sent.
  virtual void vanish() {}

 protected:
  SimulatedFile() = default;
};

class SimulatedListener;

/// One side of a TCP connection, or a socket that is not connected yet.
class SimulatedConnection final : public SimulatedFile,
                                  public std::enable_shared_from_this<SimulatedConnection> {
 public:
  SimulatedConnection(SimulatedNetwork& network, SimulatedProcess& process)
      : network_(network), process_(process) {}

  short ready() const override {
    int events = 0;
    if (!inbox_.empty() || ended_ || reset_ || error_ != 0) events |= POLLIN;
    if (reset_ || state_ == State::refused) events |= POLLERR | POLLHUP | POLLOUT;
    if (state_ == State::connected && space() > 0) events |= POLLOUT;
    return static_cast<short>(events);
  }

  void close() override {
    if (std::exchange(closed_, true)) return;
    const auto peer = peer_.lock();
    if (peer == nullptr || out_ == nullptr || reset_) return;
    // A socket that is closed with unread bytes resets the connection.
    const bool resets = !inbox_.empty();
    // The other side keeps this object's window; packets keep the object itself.
    out_->send([self = shared_from_this(), peer, resets] {
      if (resets) {
        peer->reset(ECONNRESET);
      } else {
        peer->end_of_stream();
      }
    });
  }

  void vanish() override { closed_ = true; }

  void bind(const sockaddr_in& address) { local_ = address; }
  long connect(const sockaddr_in& to);
  long read(char* data, std::size_t bytes) {
    if (!inbox_.empty()) {
      auto count = std::min(bytes, inbox_.size());
      if (network_.settings().splits && network_.random().chance(20)) {
        count = 1 + static_cast<std::size_t>(network_.random().below(static_cast<int>(count)));
      }
      inbox_.copy(data, count);
      inbox_.erase(0, count);
      if (const auto peer = peer_.lock()) {
        const bool was_full = peer->space() == 0;
        peer->unread_ -= std::min(peer->unread_, count);
        if (was_full) peer->changed();
      }
      return static_cast<long>(count);
    }
    if (error_ != 0) return -std::exchange(error_, 0);
    if (ended_ || reset_) return 0;
    return state_ == State::connected ? -EAGAIN : -ENOTCONN;
  }
  long write(std::string_view bytes) {
    if (reset_) return -EPIPE;
    if (state_ != State::connected) return -ENOTCONN;
    if (bytes.empty()) return 0;
    if (space() == 0) return -EAGAIN;
    auto count = std::min(bytes.size(), space());
    if (network_.settings().splits && network_.random().chance(20)) {
      count = 1 + static_cast<std::size_t>(network_.random().below(static_cast<int>(count)));
    }
    unread_ += count;
    if (is_client_ && !std::exchange(has_written_, true)) {
      network_.first_bytes.emplace_back(bytes);
    }
    out_->send([self = shared_from_this(), sent = std::string(bytes.substr(0, count))] {
      if (const auto peer = self->peer_.lock()) {
        peer->receive(sent);
      } else {
        self->reset(ECONNRESET);  // the socket of the other side is gone
      }
    });
    return static_cast<long>(count);
  }
  /// The error of SO_ERROR, which is reset.
  int take_error() { return std::exchange(error_, 0); }
  /// Breaks the connection, as an error of the network does.
  void fail(int error) {
    const auto peer = peer_.lock();
    reset(error);
    if (peer != nullptr) peer->reset(error);
  }
  /// Breaks this side of it. The other side notices that when it sends.
  void reset(int error) {
    if (closed_ || reset_) return;
    reset_ = true;
    error_ = error;
    changed();
  }

  const sockaddr_in& local() const { return local_; }
  const sockaddr_in& remote() const { return remote_; }
  /// The number of connections of the network before this one, plus a constant.
  std::uint16_t client_port() const { return ntohs((is_client_ ? local_ : remote_).sin_port); }
  bool connected() const { return state_ == State::connected; }
  SimulatedProcess& process() const { return process_; }
  std::shared_ptr<SimulatedConnection> peer() const { return peer_.lock(); }

 private:
  friend class SimulatedListener;
  enum class State { unconnected, connecting, connected, refused };

  void receive(const std::string& bytes) {
    if (closed_ || reset_) {
      // The kernel answers bytes for a socket that is gone by a reset.
      if (const auto peer = peer_.lock()) {
        out_->send([peer] { peer->reset(ECONNRESET); });
      }
      return;
    }
    inbox_ += bytes;
    changed();
  }
  void end_of_stream() {
    ended_ = true;
    changed();
  }
  void changed() {
    ++process_.news;
    network_.scheduler().notify(&process_);
  }
  std::size_t space() const {
    const auto buffer = network_.settings().buffer;
    return unread_ < buffer ? buffer - unread_ : 0;
  }

  SimulatedNetwork& network_;
  SimulatedProcess& process_;
  State state_ = State::unconnected;
  sockaddr_in local_{};
  sockaddr_in remote_{};
  std::shared_ptr<Pipe> out_;
  std::weak_ptr<SimulatedConnection> peer_;
  std::string inbox_;
  std::size_t unread_ = 0;  ///< bytes that the other side has not read
  bool is_client_ = false;
  bool has_written_ = false;
  bool ended_ = false;  ///< the other side has closed
  bool reset_ = false;
  bool closed_ = false;
  int error_ = 0;
};

class SimulatedListener final : public SimulatedFile {
 public:
  SimulatedListener(SimulatedNetwork& network, SimulatedProcess& process)
      : network_(network), process_(process) {}

  short ready() const override { return static_cast<short>(waiting_.empty() ? 0 : POLLIN); }
  void close() override {
    listens_ = false;
    for (const auto& connection : waiting_) {
      connection->closed_ = true;
      if (const auto peer = connection->peer_.lock()) {
        connection->out_->send([connection, peer] { peer->reset(ECONNRESET); });
      }
    }
    waiting_.clear();
  }

  void vanish() override { listens_ = false; }

  void listen() { listens_ = true; }
  bool listens() const { return listens_; }
  /// Null: no connection is waiting.
  std::shared_ptr<SimulatedConnection> accept() {
    if (waiting_.empty()) return nullptr;
    auto connection = std::move(waiting_.front());
    waiting_.pop_front();
    return connection;
  }

  SimulatedProcess& process() const { return process_; }
  void add(std::shared_ptr<SimulatedConnection> connection) {
    waiting_.push_back(std::move(connection));
    ++process_.news;
    network_.scheduler().notify(&process_);
  }

  sockaddr_in address{};

 private:
  SimulatedNetwork& network_;
  SimulatedProcess& process_;
  bool listens_ = false;
  std::deque<std::shared_ptr<SimulatedConnection>> waiting_;
};

inline long SimulatedConnection::connect(const sockaddr_in& to) {
  if (state_ == State::refused) return -ECONNREFUSED;
  remote_ = to;
  is_client_ = true;
  const auto target = ntohl(to.sin_addr.s_addr);
  const int host =
      target == loopback ? process_.host() : static_cast<int>(target - network_address);
  if (local_.sin_addr.s_addr == 0) {
    local_.sin_addr.s_addr = htonl(
        target == loopback ? loopback : network_address + static_cast<unsigned>(process_.host()));
  }
  local_.sin_family = AF_INET;
  local_.sin_port = htons(network_.client_port());
  state_ = State::connecting;
  out_ = std::make_shared<Pipe>(network_, process_.host(), host, true);
  out_->send([self = shared_from_this(), host] {
    auto& network = self->network_;
    const auto back = std::make_shared<Pipe>(network, host, self->process_.host(), true);
    const auto listener = network.listener(host, ntohs(self->remote_.sin_port));
    if (listener == nullptr) {
      back->send([self] {
        self->state_ = State::refused;
        self->error_ = ECONNREFUSED;
        self->changed();
      });
      return;
    }
    const auto other = std::make_shared<SimulatedConnection>(network, listener->process());
    other->state_ = State::connected;
    other->local_ = self->remote_;
    other->remote_ = self->local_;
    other->out_ = back;
    other->peer_ = self;
    self->peer_ = other;
    listener->add(other);
    back->send([self, other] {
      if (self->state_ == State::connecting) self->state_ = State::connected;
      if (self->closed_) other->reset(ECONNRESET);
      self->changed();
    });
  });
  return -EINPROGRESS;
}

/// An eventfd.
class SimulatedEvent final : public SimulatedFile {
 public:
  short ready() const override { return static_cast<short>(count > 0 ? POLLIN : 0); }
  std::uint64_t count = 0;
};

/// An epoll instance. Level-triggered.
class SimulatedEpoll final : public SimulatedFile {
 public:
  short ready() const override { return 0; }

  struct Entry {
    std::weak_ptr<SimulatedFile> file;
    epoll_event event;
  };
  std::map<int, Entry> entries;
};

}  // namespace lockstep::testing
