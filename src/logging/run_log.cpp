#include "lockstep/run_log.h"

#include <ATen/Parallel.h>
#include <ATen/ops/from_blob.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <limits>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "comm/waiting.h"
#include "core/environment.h"
#include "core/operation_error.h"
#include "core/system/files.h"
#include "core/system/topology.h"
#include "core/text.h"
#include "group/gather.h"
#include "lockstep/error.h"
#include "lockstep/group.h"
#include "lockstep/prefetch_loader.h"
#include "lockstep/statistics.h"
#include "profile/group_statistics.h"
#include "profile/trace.h"
#include "record/folder.h"
#include "record/run.h"
#include "record/scalar.h"
#include "record/trace_file.h"

namespace lockstep::inline v0_2 {
namespace {

using record::AppendFile;
using Clock = std::chrono::steady_clock;

double seconds(std::chrono::nanoseconds time) {
  return std::chrono::duration<double>(time).count();
}

double wall_time() { return seconds(std::chrono::system_clock::now().time_since_epoch()); }

/// A byte tensor over the memory of the values, which must outlive it.
template <class Value>
at::Tensor bytes_over(std::vector<Value>& values) {
  return at::from_blob(values.data(), {static_cast<std::int64_t>(values.size() * sizeof(Value))},
                       at::kByte);
}

}  // namespace

/// A rank's counters at one time.
struct RunLog::Counters {
  Clock::time_point time = Clock::now();
  std::chrono::nanoseconds waiting = detail::waited();
  std::chrono::nanoseconds working = detail::work_done();
  std::chrono::nanoseconds loading = detail::loading_time();
  std::uint64_t bytes = 0;
  std::uint64_t dense_bytes = 0;

  explicit Counters(const Group& world) {
    for (const auto& row : world.statistics()) {
      bytes += row.bytes;
      dense_bytes += row.dense_bytes;
    }
  }

  record::RankInterval interval_until(const Counters& end) const {
    return {.seconds = seconds(end.time - time),
            .waiting = seconds(end.waiting - waiting),
            .working = seconds(end.working - working),
            .loading = seconds(end.loading - loading),
            .bytes = end.bytes - bytes,
            .dense_bytes = end.dense_bytes - dense_bytes};
  }
};

struct RunLog::State {
  State(const Group& group, RunLogOptions given)
      : world(group), host_group(group.host()), options(std::move(given)) {}

  void open_files();
  void continue_metrics(const record::Continuation& from);
  bool discard(const char* name, const record::Continuation& from, AppendFile& file);
  double elapsed() const { return elapsed_before + seconds(Clock::now() - begin); }
  void compare_clocks();
  std::int64_t first_begin(const std::vector<TraceSpan>& spans) const;
  void write_trace(std::vector<TraceSpan> spans, std::uint64_t lost_spans);

  Group world;
  Group host_group;  ///< of the same ranks; exchanges what is recorded
  RunLogOptions options;
  std::vector<std::string> hosts;
  std::optional<detail::FolderLock> lock;  // this and the three files: on rank 0 only
  AppendFile metrics;
  AppendFile events;
  AppendFile intervals;
  std::vector<std::string> older_event_files;  ///< of the log that this one continues
  bool has_metrics = false;                    ///< of this run, after those it continues
  bool has_intervals = false;
  Clock::time_point begin = Clock::now();
  double elapsed_before = 0;  ///< seconds, of the log that this one continues
  std::int64_t first_step = 0;
  std::optional<Counters> interval;
  std::optional<detail::Trace> trace;
  std::int64_t clock_offset = 0;  ///< this rank's clock − rank 0's clock. Units: nanoseconds
  std::string trace_error;
  std::string continuation_error;
};

void RunLog::State::open_files() {
  const std::filesystem::path folder = options.folder;
  record::make_folder(folder);
  lock.emplace(folder, "log");  // before any file is removed
  auto names = record::event_files_of(folder);
  if (options.overwrite) {
    // Otherwise TensorBoard would show the events of the replaced run, too.
    names.emplace_back(record::trace_name);
    std::error_code ignored;
    names.emplace_back(record::discarded_name);
    for (const auto& name : std::exchange(names, {}))
      std::filesystem::remove(folder / name, ignored);
  }
  older_event_files = names;
  metrics = AppendFile(folder / record::metrics_name, !options.overwrite);
  intervals = AppendFile(folder / record::intervals_name, !options.overwrite);
  names.push_back(record::new_event_file_name(folder));
  events = AppendFile(folder / names.back(), false);
  events.add(record::first_event_record(wall_time()));
  record::write_environment(folder,
                            {.ranks = world.size(),
                             .hosts = hosts,
                             // Of a rank that is bound to cores, a launcher knows those of all.
                             .cores = Environment::get().cores.value_or(
                                 static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN))),
                             .backend = std::string(world.communicator().backend()),
                             .strategy = options.strategy,
                             .threads = at::get_num_threads(),
                             .event_files = std::move(names)});
}

/// Discards the records that this run computes again. Whether a record of the step is kept.
bool RunLog::State::discard(const char* name, const record::Continuation& from, AppendFile& file) {
  const std::filesystem::path folder = options.folder;
  try {
    const auto before = record::discard_repeated(folder, name, from);
    elapsed_before = std::max(elapsed_before, before.elapsed);
    // The file may have been replaced.
    if (before.records > 0) file = AppendFile(folder / name, true);
    return before.keeps_step;
  } catch (const std::exception& error) {
    continuation_error = error.what();
    return false;
  }
}

/// Runs once, before the first record of this run.
void RunLog::State::continue_metrics(const record::Continuation& from) {
  if (std::exchange(has_metrics, true)) return;
  const bool keeps_step = discard(record::metrics_name, from, metrics) || from.names.empty();
  if (from.step < 0) {
    std::error_code ignored;
    for (const auto& name : older_event_files)
      std::filesystem::remove(std::filesystem::path(options.folder) / name, ignored);
  } else if (!older_event_files.empty()) {
    // TensorBoard drops all points from this step on.
    const auto first = keeps_step ? from.step + 1 : from.step;
    events.add(record::restart_event_record(wall_time(), first));
  }
}

/// Ranks of one host share a clock. Clocks of other hosts are compared right after a barrier, so
/// the error of the offset is the latency of the barrier.
void RunLog::State::compare_clocks() {
  host_group.barrier().wait();
  std::vector<std::int64_t> now{detail::trace_clock()};
  const auto own = now[0];
  host_group.broadcast(bytes_over(now)).wait();
  if (world.node() != 0) clock_offset = own - now[0];
}

/// The begin of the first span of all ranks.
std::int64_t RunLog::State::first_begin(const std::vector<TraceSpan>& spans) const {
  constexpr auto no_span = std::numeric_limits<std::int64_t>::max();
  std::vector<std::int64_t> first(1, no_span);
  for (const auto& span : spans) first[0] = std::min(first[0], span.begin);
  const auto tensor = at::from_blob(first.data(), {1}, at::kLong);
  host_group.all_reduce(tensor, ReduceOp::min).wait();
  return first[0] == no_span ? 0 : first[0];
}

void RunLog::State::write_trace(std::vector<TraceSpan> spans, std::uint64_t lost_spans) {
  for (auto& span : spans) {
    span.begin -= clock_offset;
    span.end -= clock_offset;
  }
  const auto origin = first_begin(spans);
  std::vector<std::uint64_t> sizes{spans.size(), lost_spans};
  if (world.rank() != 0) {
    host_group.send(bytes_over(sizes), 0).wait();
    host_group.send(bytes_over(spans), 0).wait();
    return;
  }
  // The other ranks send in any case, so rank 0 receives even if it cannot open the file.
  std::optional<record::TraceFile> file;
  try {
    file.emplace(std::filesystem::path(options.folder) / record::trace_name, origin);
  } catch (const Error& error) {
    trace_error = error.what();
  }
  for (int rank = 0; rank < world.size(); ++rank) {
    if (rank > 0) {
      host_group.recv(bytes_over(sizes), rank).wait();
      spans.resize(sizes[0]);
      host_group.recv(bytes_over(spans), rank).wait();
    }
    if (file) file->add(rank, hosts[static_cast<std::size_t>(rank)], spans, sizes[1]);
  }
  try {
    if (file) file->commit();
  } catch (const Error& error) {
    trace_error = error.what();
  }
}

RunLog::RunLog(const Group& world, RunLogOptions options) {
  if (options.folder.empty()) {
    if (options.trace) {
      detail::throw_invalid("run log",
                            "got a trace without a folder, expected a folder for the trace");
    }
    return;
  }
  auto state = std::make_unique<State>(world, std::move(options));
  state->hosts = detail::gather(detail::host_name(), world);
  all_or_none(world, [&] {
    if (world.rank() == 0) state->open_files();
    if (state->options.trace) state->trace.emplace(state->options.spans);
  });
  if (state->trace) state->compare_clocks();
  state_ = std::move(state);
}

RunLog::~RunLog() = default;

void RunLog::scalars(std::int64_t step,
                     std::initializer_list<std::pair<std::string_view, double>> values) {
  if (state_ == nullptr || state_->world.rank() != 0) return;
  std::vector<record::Scalar> all;
  for (const auto& [name, value] : values) all.push_back({std::string(name), value});
  if (!state_->has_metrics) {
    record::Continuation from{.step = step};
    for (const auto& scalar : all) from.names.push_back(scalar.name);
    state_->continue_metrics(from);
  }
  const auto now = wall_time();
  state_->metrics.add(record::metrics_line(step, state_->elapsed(), all, now));
  state_->events.add(record::event_record(now, step, all));
}

void RunLog::begin_interval(std::int64_t step) {
  if (state_ == nullptr) return;
  if (state_->world.rank() == 0) {
    // Before its first step a run has computed nothing that a log could be continued from.
    const std::int64_t kept = step > 0 ? step : -1;
    state_->continue_metrics({.step = kept});
    if (!std::exchange(state_->has_intervals, true))
      state_->discard(record::intervals_name, {.step = kept}, state_->intervals);
  }
  state_->first_step = step;
  state_->interval.emplace(state_->world);
}

void RunLog::end_interval(std::int64_t step, std::int64_t samples) {
  if (state_ == nullptr) return;
  const auto& world = state_->world;
  if (!state_->interval)
    detail::throw_invalid("run log", "got end_interval() without begin_interval(), expected both");
  std::vector<record::RankInterval> own{state_->interval->interval_until(Counters(world))};
  own[0].samples = samples;
  std::vector<record::RankInterval> all(static_cast<std::size_t>(world.size()));
  state_->interval.reset();
  state_->host_group.all_gather(bytes_over(all), bytes_over(own)).wait();
  if (world.rank() != 0) return;
  state_->intervals.add(record::interval_line({.step = step,
                                               .steps = step - state_->first_step,
                                               .elapsed = state_->elapsed(),
                                               .ranks = std::move(all)}));
}

void RunLog::close() {
  if (state_ == nullptr || !state_->trace) return;
  auto spans = state_->trace->spans();
  const auto lost_spans = state_->trace->lost();
  state_->trace.reset();
  state_->write_trace(std::move(spans), lost_spans);
}

std::string RunLog::lost() const {
  std::string text;
  const auto add = [&](const std::string& error_text) {
    if (!error_text.empty()) text += detail::concat(text.empty() ? "" : "; ", error_text);
  };
  if (state_ == nullptr) return text;
  for (const auto* file : {&state_->metrics, &state_->events, &state_->intervals}) {
    if (file->error() != 0) {
      add(detail::concat(file->path().string(), ": ", std::strerror(file->error())));
    }
  }
  add(state_->continuation_error);
  add(state_->trace_error);
  return text;
}

}  // namespace lockstep
