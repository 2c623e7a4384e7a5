#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <list>
#include <string>

#include "core/system/process.h"

namespace lockstep::inline v0_2::record {

/// An HTTP server on the loopback address, for one page: the report of a run that goes on. Each
/// request reads the folder again, and the browser asks every few seconds. It answers those who
/// know the address with its random token, and others with 403. A slow client delays no other.
class LiveReport {
 public:
  /// port: 0 for a free one.
  /// Throws: InvalidArgument if the folder is not there, Error if the port cannot be used.
  LiveReport(std::filesystem::path folder, std::uint16_t port);
  LiveReport(const LiveReport&) = delete;
  LiveReport& operator=(const LiveReport&) = delete;

  /// http://127.0.0.1:PORT/?token=TOKEN
  std::string address() const;
  std::uint16_t port() const { return port_; }

  /// Serves all clients until one has its answer or is dropped, because it is slow or sends no
  /// HTTP. False if there is none in time.
  bool answer(std::chrono::milliseconds timeout);

 private:
  using Clock = std::chrono::steady_clock;

  struct Client {
    detail::Descriptor socket;
    Clock::time_point until;  ///< then it is dropped
    std::string request = {};
    std::string unsent = {};  ///< rest of the response; empty before there is one
  };

  void accept_client();
  /// Reads from the client, or writes to it. False if it is to be closed.
  bool advance(Client& client) const;
  std::string page() const;
  std::string response(const std::string& request) const;

  std::filesystem::path folder_;
  std::uint16_t port_ = 0;
  std::string token_;
  detail::Descriptor listener_;
  std::list<Client> clients_;  ///< the oldest first
};

}  // namespace lockstep::record
