#pragma once

#include <netinet/in.h>
#include <sys/epoll.h>

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "tests/simulation/simulated_network.h"
#include "tests/simulation/simulated_process.h"

namespace lockstep::testing {

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

  short ready() const override;
  void close() override;
  void vanish() override { closed_ = true; }

  void bind(const sockaddr_in& address) { local_ = address; }
  long connect(const sockaddr_in& to);
  long read(char* data, std::size_t bytes);
  long write(std::string_view bytes);
  /// The error of SO_ERROR, which is reset.
  int take_error() { return std::exchange(error_, 0); }
  /// Breaks the connection, as an error of the network does.
  void fail(int error);
  /// Breaks this side of it. The other side notices that when it sends.
  void reset(int error);

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

  void receive(const std::string& bytes);
  void end_of_stream();
  void changed();
  std::size_t space() const;

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

  short ready() const override;
  void close() override;
  void vanish() override { listens_ = false; }

  void listen() { listens_ = true; }
  bool listens() const { return listens_; }
  /// Null: no connection is waiting.
  std::shared_ptr<SimulatedConnection> accept();
  SimulatedProcess& process() const { return process_; }
  void add(std::shared_ptr<SimulatedConnection> connection);

  sockaddr_in address{};

 private:
  SimulatedNetwork& network_;
  SimulatedProcess& process_;
  bool listens_ = false;
  std::deque<std::shared_ptr<SimulatedConnection>> waiting_;
};

/// An eventfd.
class SimulatedEvent final : public SimulatedFile {
 public:
  short ready() const override;
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
