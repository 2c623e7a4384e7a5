#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <iterator>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/command_line.h"
#include "comm/flight/diagnosis.h"
#include "comm/flight/flight_record.h"
#include "comm/flight/stack_file.h"
#include "core/text.h"
#include "launch/system.h"
#include "lockstep/error.h"
#include "record/folder.h"

namespace lockstep::cli {
namespace {

namespace fs = std::filesystem;
using detail::concat;
using detail::FlightRecord;
using detail::hex;
using detail::ObservedRank;
using Frame = detail::ProcessStacks::Frame;
using Records = std::vector<std::shared_ptr<const FlightRecord>>;

struct ExplainArguments {
  std::vector<std::string> paths;
  bool stacks = false;
  std::string trace;
};

/// The records in the folder, or in the folder of an attempt of a job with restarts: those that
/// were written last. The folder may also have records of earlier jobs.
std::vector<fs::path> newest_flights_in(const fs::path& folder) {
  std::vector<fs::path> files;
  for (fs::recursive_directory_iterator entry(folder), end; entry != end; ++entry) {
    const auto& path = entry->path();
    if (!path.filename().string().starts_with("attempt-")) entry.disable_recursion_pending();
    if (path.extension() == ".flight") files.push_back(path);
  }
  if (files.empty()) return files;
  const auto written = [](const fs::path& file) { return fs::last_write_time(file); };
  const auto newest = std::ranges::max_element(files, {}, written)->parent_path();
  std::erase_if(files, [&](const fs::path& file) { return file.parent_path() != newest; });
  const auto name = newest.filename().string();
  if (!fs::equivalent(newest, folder)) std::cout << name << " of " << folder.string() << ":\n";
  return files;
}

/// The records in the files, and in the folders' files *.flight. One of each rank.
Records read_records(const std::vector<std::string>& paths) {
  std::vector<fs::path> files;
  for (const fs::path path : paths) {
    if (!fs::exists(path)) {
      throw InvalidArgument(concat("explain: got ", path.string(),
                                   ", expected a flight record or a folder of them: no such file "
                                   "or folder"));
    }
    const auto found =
        fs::is_directory(path) ? newest_flights_in(path) : std::vector<fs::path>{path};
    files.insert(files.end(), found.begin(), found.end());
  }
  Records records;
  for (const auto& file : files) {
    auto record = FlightRecord::read(file);
    if (record == nullptr) {
      throw InvalidArgument(concat("explain: got ", file.string(),
                                   ", expected a flight record of this version that this user may "
                                   "read, as rank-0.flight of a log folder"));
    }
    if (!records.empty() &&
        (record->job() != records.front()->job() || record->size() != records.front()->size())) {
      throw InvalidArgument(concat("explain: got records of the jobs ", records.front()->job(),
                                   " and ", record->job(), ", expected those of one job"));
    }
    records.push_back(std::move(record));
  }
  std::ranges::sort(records, {}, &FlightRecord::rank);
  const auto repeated = std::ranges::adjacent_find(records, {}, &FlightRecord::rank);
  if (repeated != records.end()) {
    throw InvalidArgument(concat("explain: got two records of rank ", (*repeated)->rank(), ", ",
                                 (*repeated)->path().string(), " and ",
                                 (*std::next(repeated))->path().string(), ", expected one"));
  }
  if (records.empty()) {
    throw InvalidArgument(
        "explain: got no flight record, expected rank-0.flight, … of a failed job");
  }
  return records;
}

/// A rank that was killed, or crashed, raised no failure: its record is a copy by the launcher.
bool raised(const FlightRecord& record) { return !record.failure().empty(); }

/// The stacks of the rank's process. Of several ranks of a process, one has the file.
detail::ProcessStacks stacks_of(const FlightRecord& record, const Records& records) {
  for (const auto& other : records) {
    if (other->file().pid != record.file().pid || other->host() != record.host()) continue;
    auto stacks = detail::ProcessStacks::read(other->path().parent_path() /
                                              detail::stack_file_name(other->rank()));
    if (stacks.process == record.file().pid) return stacks;
  }
  return {};
}

/// The states at the time of the failure. The launcher copies the record of a stopped or computing
/// rank after it has ended the rank. Other ranks have seen a stopped one, and one that wrote its
/// stacks without a failure of its own was running.
std::vector<ObservedRank> observe(const Records& records) {
  std::vector<ObservedRank> ranks;
  for (const auto& record : records) {
    ranks.push_back(detail::observe(record));
    const bool stopped = std::ranges::any_of(
        records, [&](const auto& other) { return other->has_seen_stopped(record->rank()); });
    if (stopped) {
      ranks.back().state = ObservedRank::State::stopped;
    } else if (!raised(*record) && !stacks_of(*record, records).threads.empty()) {
      ranks.back().state = ObservedRank::State::unknown;
    }
  }
  return ranks;
}

std::vector<std::string> output_lines(const std::string& command) {
  std::string text;
  auto* const pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) return {};
  std::array<char, 4096> buffer{};
  while (const auto got = std::fread(buffer.data(), 1, buffer.size(), pipe)) {
    text.append(buffer.data(), got);
  }
  ::pclose(pipe);
  text.resize(text.rfind('\n') + 1);  // without the line of a command that was ended in it
  return detail::lines_in(text);
}

/// Removes the parts of "main at /home/user/train.cpp:42 (discriminator 3)" that say little.
std::string shortened(std::string line) {
  if (const auto at = line.find(" (discriminator"); at != std::string::npos) line.resize(at);
  const auto at = line.rfind(" at ");
  if (at == std::string::npos) return line;
  const auto function = line.substr(0, at);
  const auto place = fs::path(line.substr(at + 4)).filename().string();
  return place.ends_with('?') ? function : concat(function, " at ", place);
}

using Functions = std::map<std::pair<std::string, std::uint64_t>, std::string>;

/// The functions at addresses of programs and libraries. Reads each file once.
Functions functions_at(const std::vector<Frame>& frames) {
  Functions functions;
  std::map<std::string, std::set<std::uint64_t>> addresses;
  for (const auto& frame : frames) {
    if (!frame.file.empty()) addresses[frame.file].insert(frame.address);
  }
  for (const auto& [file, of_file] : addresses) {
    std::error_code absent;
    if (!fs::is_regular_file(file, absent)) continue;
    auto command = concat("timeout 30 addr2line -Cfpe ", detail::quoted(file));
    for (const auto address : of_file) command += concat(" 0x", hex(address));
    const auto lines = output_lines(concat(command, " 2>/dev/null"));
    if (lines.size() != of_file.size()) continue;
    auto line = lines.begin();
    for (const auto address : of_file) {
      if (!line->starts_with("??")) functions[{file, address}] = shortened(*line);
      ++line;
    }
  }
  return functions;
}

/// "load_batch() at train.cpp:42 (train)"; "train+0x12ab" if the function is not known.
std::string text_of(const Frame& frame, const Functions& functions) {
  const auto file = fs::path(frame.file).filename().string();
  const auto found = functions.find({frame.file, frame.address});
  if (found != functions.end()) return concat(found->second, " (", file, ')');
  return concat(file, file.empty() ? "0x" : "+0x", hex(frame.address));
}

/// Prints a thread's stack: its name and state, and its innermost frames, such as
/// "    #1 load_batch() at train.cpp:42 (train)". Functions are found by addr2line of binutils.
void print_stack(const detail::ProcessStacks::Thread& thread, std::size_t most_frames) {
  std::cout << "  thread " << thread.id << ' ' << thread.name;
  if (thread.has_answered) {  // it was running the handler
    std::cout << ":\n";
  } else {
    std::cout << ", " << launch::state_text(thread.state) << ": did not answer\n";
  }
  auto frames = thread.frames;
  frames.resize(std::min(frames.size(), most_frames));
  const auto functions = functions_at(frames);
  for (std::size_t i = 0; i < frames.size(); ++i) {
    std::cout << "    #" << i << ' ' << text_of(frames[i], functions) << '\n';
  }
  const auto more = thread.frames.size() - frames.size();
  if (more > 0) std::cout << "    … " << more << " more\n";
}

void print_stacks(const FlightRecord& record, const Records& records, bool all) {
  constexpr std::size_t few = 12;
  constexpr std::size_t many = 64;
  const auto stacks = stacks_of(record, records);
  if (stacks.threads.empty()) {
    std::cout << "no stacks of rank " << record.rank()
              << ": its process was stopped or killed, or has written none\n";
    return;
  }
  std::cout << "stack" << (all ? "s" : "") << " of rank " << record.rank() << " (pid "
            << record.file().pid << ")\n";
  for (const auto& thread : stacks.threads) {
    if (!all && thread.id != stacks.process) continue;
    print_stack(thread, all ? many : few);
  }
}

/// The ranks whose stacks say most: the rank at fault, and those that the others wait for.
std::set<int> blamed_ranks(const FlightRecord* first, const detail::Diagnosis& found) {
  std::set<int> ranks;
  if (first != nullptr && first->file().failed_rank >= 0) ranks.insert(first->file().failed_rank);
  using Kind = detail::Diagnosis::Kind;
  if (found.kind == Kind::missing || found.kind == Kind::deadlock) {
    ranks.insert(found.ranks.begin(), found.ranks.end());
  }
  return ranks;
}

void explain(const Records& records, bool all_stacks) {
  const auto& front = *records.front();
  std::vector<int> absent, silent;
  for (int rank = 0; rank < front.size(); ++rank) {
    const auto found = std::ranges::find(records, rank, &FlightRecord::rank);
    if (found == records.end()) {
      absent.push_back(rank);
    } else if (!raised(**found)) {
      silent.push_back(rank);
    }
  }
  std::cout << "job " << front.job() << ": " << front.file().program << ", "
            << detail::plural(front.size(), "rank") << ", backend " << front.file().backend << ", "
            << detail::plural(records.size(), "record") << '\n';
  // 1. The first failure, as the ranks raised it.
  const FlightRecord* first = nullptr;
  for (const auto& record : records) {
    if (raised(*record) && (first == nullptr || record->failed_real() < first->failed_real())) {
      first = record.get();
    }
  }
  if (first != nullptr) {
    std::cout << "first cause: " << first->failure() << " (first raised by rank " << first->rank()
              << ")\n";
  } else {
    std::cout << "first cause: no rank raised a failure: the ranks were killed, or ended by a "
                 "signal\n";
  }
  const auto ranks = observe(records);
  const auto was_stopped = [&](int rank) {
    return std::ranges::find(ranks, rank, &ObservedRank::rank)->state ==
           ObservedRank::State::stopped;
  };
  std::vector<int> stopped;
  std::ranges::copy_if(silent, std::back_inserter(stopped), was_stopped);
  std::erase_if(silent, was_stopped);
  if (!stopped.empty()) {
    std::cout << detail::rank_list(stopped)
              << " raised no failure: stopped (SIGSTOP or a debugger)\n";
  }
  if (!silent.empty() && first != nullptr) {
    std::cout << detail::rank_list(silent)
              << " raised no failure: killed, crashed or outside calls of Lockstep\n";
  }
  if (!absent.empty()) std::cout << "no record of " << detail::rank_list(absent) << '\n';
  // 2. The waits at the time of the failure.
  const auto found = detail::diagnose(ranks, 0);
  for (const auto& line : found.text) std::cout << line << '\n';
  // 3. The last operation of each rank; ranks with the same operation share a line.
  std::map<std::string, std::vector<int>> last;
  for (const auto& record : records) {
    const auto& entries = record->entries();
    last[entries.empty() ? "nothing"
                         : concat(detail::operation_text(*record, entries.back()),
                                  entries.back().ended ? ", complete" : ", not complete")]
        .push_back(record->rank());
  }
  for (const auto& [what, of] : last) {
    std::cout << detail::rank_list(of) << " issued last: " << what << '\n';
  }
  // 4. What the ranks to blame did, or all ranks.
  const auto blamed = blamed_ranks(first, found);
  for (const auto& record : records) {
    if (all_stacks || blamed.contains(record->rank())) print_stacks(*record, records, all_stacks);
  }
}

/// Writes the operations as Chrome trace events: a process for each rank, a thread for each group.
void write_trace(const Records& records, const fs::path& path) {
  using nlohmann::ordered_json;
  std::int64_t origin = records.front()->file().begun.real;
  for (const auto& record : records) origin = std::min(origin, record->file().begun.real);
  const auto microseconds = [&](std::int64_t time) {
    return static_cast<double>(time - origin) / 1e3;
  };
  ordered_json events = ordered_json::array();
  for (const auto& record : records) {
    const int rank = record->rank();
    events.push_back({{"pid", rank},
                      {"ph", "M"},
                      {"name", "process_name"},
                      {"args", {{"name", concat("rank ", rank, " on ", record->host())}}}});
    std::map<std::uint64_t, int> rows;
    for (const auto& entry : record->entries()) {
      const auto [row, added] = rows.try_emplace(entry.group, static_cast<int>(rows.size()));
      if (added) {
        events.push_back({{"pid", rank},
                          {"tid", row->second},
                          {"ph", "M"},
                          {"name", "thread_name"},
                          {"args", {{"name", detail::group_text(*record, entry.group)}}}});
      }
      const bool complete = entry.ended.has_value();
      events.push_back({{"pid", rank},
                        {"tid", row->second},
                        {"ph", "X"},
                        {"name", concat(entry.label(), complete ? "" : " (not complete)")},
                        {"ts", microseconds(entry.issued_real)},
                        {"dur", (entry.issued - entry.ended.value_or(0)) * 1e6},
                        {"args",
                         {{"bytes", entry.bytes},
                          {"dtype", lockstep::name(entry.dtype)},
                          {"operation", detail::operation_text(*record, entry)}}}});
    }
    if (raised(*record)) {
      events.push_back({{"pid", rank},
                        {"tid", 0},
                        {"ph", "i"},
                        {"s", "p"},
                        {"name", "failure"},
                        {"ts", microseconds(record->failed_real())},
                        {"args", {{"text", record->failure()}}}});
    }
  }
  const ordered_json trace{{"displayTimeUnit", "ms"}, {"traceEvents", std::move(events)}};
  record::write_file(path,
                     trace.dump(-1, ' ', false, ordered_json::error_handler_t::replace) + '\n');
  std::cout << "operations of " << detail::plural(records.size(), "rank") << ": " << path.string()
            << '\n';
}

}  // namespace

void add_explain(CLI::App& app, int& /*exit_code*/) {
  const auto arguments = std::make_shared<ExplainArguments>();
  auto* command = app.add_subcommand(
      "explain", "Say what happened to a failed job, from the flight records of its ranks");
  command->footer("As in: lockstep explain logs");
  add_value(command, "FILE", arguments->paths, "FILE",
            "Flight records (rank-0.flight, …), or the folder that holds them: --log-dir of "
            "lockstep run, or LOCKSTEP_TRACE")
      ->required();
  command->add_flag("--stacks", arguments->stacks,
                    "Show the stacks of all threads of all ranks (default: that of the main thread "
                    "of the ranks to blame)");
  add_value(command, "--trace", arguments->trace, "FILE",
            "Also write the operations for Perfetto or chrome://tracing");
  command->callback([arguments] {
    const auto records = read_records(arguments->paths);
    explain(records, arguments->stacks);
    if (!arguments->trace.empty()) write_trace(records, arguments->trace);
  });
}

}  // namespace lockstep::cli
