#include "lockstep/train/run_log.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <cstring>
#include <filesystem>
#include <optional>
#include <vector>

#include "lockstep/comm/statistics.h"
#include "lockstep/comm/trace.h"
#include "lockstep/core/error.h"
#include "lockstep/core/topology.h"
#include "lockstep/record/append_file.h"
#include "lockstep/record/folder.h"
#include "lockstep/record/lap.h"
#include "lockstep/record/scalar.h"
#include "lockstep/record/trace_file.h"
#include "lockstep/together.h"
#include "lockstep/train/texts.h"

namespace lockstep {
namespace {

using record::AppendFile;
using Clock = std::chrono::steady_clock;

double seconds(std::chrono::nanoseconds time) { return std::chrono::duration<double>(time).count(); }

double wall_time() { return seconds(std::chrono::system_clock::now().time_since_epoch()); }

/// Where a rank's counters stood.
struct Counters {
  Clock::time_point time = Clock::now();
  std::chrono::nanoseconds waiting = detail::waited();
  std::chrono::nanoseconds working = detail::work_done();
  std::uint64_t bytes = 0;
  std::uint64_t dense_bytes = 0;

  explicit Counters(const Group& world) {
    for (const auto& row : world.statistics()) {
      bytes += row.bytes;
      dense_bytes += row.dense_bytes;
    }
  }
};

record::RankLap between(const Counters& begin, const Counters& end) {
  return {.seconds = seconds(end.time - begin.time),
          .waiting = seconds(end.waiting - begin.waiting),
          .working = seconds(end.working - begin.working),
          .bytes = end.bytes - begin.bytes,
          .dense_bytes = end.dense_bytes - begin.dense_bytes};
}

at::Tensor bytes_of(std::size_t count) {
  return at::empty({static_cast<std::int64_t>(count)}, at::kByte);
}

template <class Value>
std::vector<Value> values_of(const at::Tensor& bytes) {
  std::vector<Value> values(bytes.nbytes() / sizeof(Value));
  if (!values.empty()) std::memcpy(values.data(), bytes.const_data_ptr(), bytes.nbytes());
  return values;
}

template <class Value>
at::Tensor bytes_of(const std::vector<Value>& values) {
  const auto bytes = bytes_of(values.size() * sizeof(Value));
  if (!values.empty()) std::memcpy(bytes.mutable_data_ptr(), values.data(), bytes.nbytes());
  return bytes;
}

}  // namespace

struct RunLog::State {
  State(const Group& group, RunLogOptions given) : world(group), options(std::move(given)) {}

  void open_files();
  void write_environment();
  void find_clock();
  void write_trace();
  std::vector<const AppendFile*> files() const { return {&metrics, &events, &laps}; }

  Group world;
  RunLogOptions options;
  std::vector<std::string> hosts;
  std::string event_file;
  AppendFile metrics;  // these three are rank 0's
  AppendFile events;
  AppendFile laps;
  Clock::time_point begin = Clock::now();
  std::int64_t lap_step = 0;
  std::optional<Counters> lap;
  std::optional<detail::Trace> trace;
  std::int64_t ahead = 0;  ///< how much this rank's clock is ahead of rank 0's, in nanoseconds
  std::string trace_problem;
};

void RunLog::State::open_files() {
  const std::filesystem::path folder = options.folder;
  record::make_folder(folder);
  auto names = record::event_files_of(folder);
  if (!options.kept) {
    // TensorBoard would show a run that has been replaced together with this one.
    for (const auto& name : std::exchange(names, {})) std::filesystem::remove(folder / name);
    std::filesystem::remove(folder / record::trace_name);
  }
  metrics = AppendFile(folder / record::metrics_name, options.kept);
  laps = AppendFile(folder / record::laps_name, options.kept);
  names.push_back(record::new_event_file_name());
  events = AppendFile(folder / names.back(), false);
  events.add(record::first_event_record(wall_time()));
  record::write_environment(folder, {.ranks = world.size(),
                                     .hosts = hosts,
                                     .backend = std::string(world.communicator().backend()),
                                     .strategy = options.strategy,
                                     .threads = at::get_num_threads(),
                                     .event_files = std::move(names)});
}
