#pragma once

#include <cstdint>
#include <filesystem>
#include <ostream>
#include <string_view>
#include <vector>

#include "core/system/files.h"
#include "core/text.h"
#include "profile/trace.h"

namespace lockstep::inline v0_2::record {

/// A stretch of time. Units: nanoseconds.
struct Stretch {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

/// The activity of a rank's thread, without gaps and overlaps from its first span to its last.
struct Timeline {
  std::vector<Stretch> computing;
  std::vector<Stretch> waiting;
  std::vector<Stretch> working;
};
Timeline timeline(const std::vector<TraceSpan>& spans);

/// All ranks' spans in the trace-event format of Chrome and Perfetto. Each rank is a process with
/// rows for compute, waiting, communication, backward, and each bucket's requests.
/// Source: "Trace Event Format" of the Catapult project.
class TraceFile {
 public:
  /// Units: times are shown from origin on, in nanoseconds.
  /// Throws: Error naming the file and the reason.
  TraceFile(std::filesystem::path path, std::int64_t origin);

  /// lost: how many older spans the rank has not kept. commit() throws if this cannot be written.
  void add(int rank, std::string_view host, const std::vector<TraceSpan>& spans,
           std::uint64_t lost);
  /// Throws: Error naming the file and the reason.
  void commit();

 private:
  void name_rows(int rank, std::string_view host, const std::vector<TraceSpan>& spans,
                 std::uint64_t lost);
  void slices(int rank, int row, std::string_view name, const std::vector<Stretch>& stretches);
  void request(int rank, const TraceSpan& span);
  /// Begins an event, whose caller ends it. Units: time in nanoseconds of the steady clock.
  std::ostream& event(int rank, int row, std::string_view name, char phase);
  std::ostream& event_at(int rank, int row, std::string_view name, char phase, std::int64_t time);

  /// Writes what out_ has.
  void flush();

  detail::AtomicFile file_;
  detail::TextStream out_;
  std::int64_t origin_;
  std::uint64_t flights_ = 0;  ///< of no bucket, so far
  bool first_ = true;
};

}  // namespace lockstep::record
