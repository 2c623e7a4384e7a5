#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <list>
#include <string>
#include <string_view>
#include <vector>

#include "core/system/process.h"
#include "record/run.h"

namespace lockstep::inline v0_2::record {

/// One HTML page about a run that needs nothing else: no other file, no script. refresh_seconds:
/// after so long a browser loads it again; 0 for never.
std::string report_page(const Run& run, const std::string& title, int refresh_seconds = 0);

/// Makes a page of the run in the folder. Returns what could not be read, or was left out.
/// Throws: InvalidArgument if it holds none, Error if the page cannot be written.
std::vector<std::string> write_report(const std::filesystem::path& folder,
                                      const std::filesystem::path& page);

/// One HTML page about two runs: a table of differences, and the curves of both in one chart.
std::string comparison_page(const Run& first, const Run& second);

/// Makes a page of the runs in two folders. Returns what could not be read, or was left out.
/// Throws: InvalidArgument if a folder holds none, Error if the page cannot be written.
std::vector<std::string> write_comparison(const std::filesystem::path& first,
                                          const std::filesystem::path& second,
                                          const std::filesystem::path& page);

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
  std::string response(std::string_view request) const;

  std::filesystem::path folder_;
  std::uint16_t port_ = 0;
  std::string token_;
  detail::Descriptor listener_;
  std::list<Client> clients_;  ///< the oldest first
};

/// A number of a run that stands out.
struct Advice {
  std::string finding;  ///< with the figures
  std::string remedy;
};

std::vector<Advice> advice_of(const Run& run);

/// Checks the format of `report --export`. Throws: InvalidArgument unless it is csv.
void check_export_format(std::string_view format);

/// Writes the metrics of a run, and what its intervals say of steps as interval/step_seconds and so
/// on: a row a step and a column a metric. Source: RFC 4180
/// Throws: Error naming the file and the reason.
void write_csv(const Run& run, const std::filesystem::path& file);

}  // namespace lockstep::record
