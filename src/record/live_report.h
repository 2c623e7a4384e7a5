#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>

namespace lockstep::inline v0_2::record {

/// An HTTP server on the loopback address, for one page: the report of a run that goes on. Each
/// request reads the folder again, and the browser asks every few seconds.
class LiveReport {
 public:
  /// port: 0 for a free one.
  /// Throws: InvalidArgument if the folder is not there, Error if the port cannot be used.
  LiveReport(std::filesystem::path folder, std::uint16_t port);
  ~LiveReport();
  LiveReport(const LiveReport&) = delete;
  LiveReport& operator=(const LiveReport&) = delete;

  /// http://127.0.0.1:PORT/
  std::string address() const;
  std::uint16_t port() const { return port_; }

  /// Answers one request. False if none came in time. A client that is slow, or sends no HTTP, is
  /// dropped.
  bool answer(std::chrono::milliseconds timeout);

 private:
  std::string page() const;
  std::string response(const std::string& request) const;

  std::filesystem::path folder_;
  std::uint16_t port_ = 0;
  int listener_ = -1;
};

}  // namespace lockstep::record
