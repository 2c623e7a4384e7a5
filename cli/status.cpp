#include <signal.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "cli/command_line.h"
#include "comm/control/status_relay.h"
#include "comm/flight/diagnosis.h"
#include "comm/flight/flight_record.h"
#include "core/system/process.h"
#include "core/system/terminal.h"
#include "core/text.h"
#include "lockstep/error.h"

namespace lockstep::cli {
namespace {

using detail::concat;
using detail::Diagnosis;
using detail::ObservedRank;
using State = ObservedRank::State;
using nlohmann::ordered_json;

struct StatusArguments {
  std::string job;
  bool watch = false;
  bool json = false;
};

/// A wait that is shorter is not reported as a hang.
constexpr double shortest_wait = 0.2;
/// Time in which processor time is measured.
constexpr auto measured_time = std::chrono::milliseconds(100);
/// Longest time of a question to other hosts.
constexpr auto longest_question = std::chrono::milliseconds(600);
constexpr auto watch_interval = std::chrono::seconds(1);

struct Load {
  std::optional<std::chrono::milliseconds> before;  ///< processor time at the begin of measure()
  std::optional<double> processors = {};            ///< busy processors
  std::optional<long> bytes = {};                   ///< resident memory
};

struct Job {
  std::string name;
  std::vector<ObservedRank> ranks;  ///< ascending
  std::vector<Load> loads;
  std::vector<control::HostsAnswer::Host> silent = {};  ///< other hosts that gave no answer
  std::vector<std::string> suspicions = {};             ///< of hosts whose heartbeats are late
  Diagnosis diagnosis = {};

  const detail::FlightRecord& first() const { return *ranks.front().record; }
  bool has_several_hosts() const {
    return std::ranges::any_of(
        ranks, [this](const ObservedRank& rank) { return rank.record->host() != first().host(); });
  }
  /// The ranks of the world without a record.
  std::vector<int> unseen() const {
    std::vector<int> missing;
    for (int rank = 0; rank < first().size(); ++rank) {
      if (std::ranges::find(ranks, rank, &ObservedRank::rank) == ranks.end()) {
        missing.push_back(rank);
      }
    }
    return missing;
  }
};

bool is_chosen(const Job& job, const std::string& chosen) {
  if (chosen.empty() || job.name.starts_with(chosen)) return true;
  return std::ranges::any_of(job.ranks, [&](const ObservedRank& rank) {
    const auto pid = rank.record->file().pid;
    return chosen == concat(pid) || chosen == concat(detail::read_process(pid).parent);
  });
}

/// Whether the record is a copy that another host has sent.
bool is_remote(const ObservedRank& rank) { return rank.record->file().last.ticks != 0; }

std::optional<std::chrono::milliseconds> processor_time(const ObservedRank& rank) {
  if (rank.state == State::ended || is_remote(rank)) return std::nullopt;
  const auto process = detail::read_process(rank.record->file().pid);
  if (!process.exists()) return std::nullopt;
  return process.processor_time;
}

/// Adds the ranks of other hosts, which a rank of this host asks. A rank that has a record here is
/// not replaced.
void add_other_hosts(Job& job) {
  const auto& lowest = job.ranks.front();
  // Other hosts are asked through rank 0.
  if (lowest.rank() == 0 && lowest.state == State::stopped) return;
  for (const auto& rank : std::vector(job.ranks)) {
    if (job.unseen().empty()) return;
    if (rank.state == State::ended || rank.state == State::stopped) continue;
    auto answer =
        control::ask_hosts(control::status_socket_name(rank.record->file().pid), longest_question);
    if (answer.hosts.empty()) continue;
    for (const auto& bytes : answer.records) {
      auto record = detail::FlightRecord::parse(bytes);
      if (record == nullptr || record->job() != job.name || record->size() != job.first().size()) {
        continue;
      }
      if (std::ranges::find(job.ranks, record->rank(), &ObservedRank::rank) == job.ranks.end()) {
        job.ranks.push_back(detail::observe(std::move(record)));
      }
    }
    std::ranges::sort(job.ranks, {}, &ObservedRank::rank);
    job.suspicions = std::move(answer.suspicions);
    for (auto& host : answer.hosts) {
      if (!host.has_answered) job.silent.push_back(std::move(host));
    }
    return;
  }
}

/// The jobs whose ranks have records here, except those that have ended.
std::vector<Job> read_jobs(const std::string& chosen) {
  detail::remove_ended_flight_records();
  // A process of several worlds, or a restarted world, has several: one job of each world size.
  std::map<std::pair<std::string, int>, Job> found;
  for (auto& record : detail::read_flight_records()) {
    auto& job = found[{std::string(record->job()), record->size()}];
    job.name = record->job();
    auto rank = detail::observe(std::move(record));
    const auto same = std::ranges::find(job.ranks, rank.rank(), &ObservedRank::rank);
    if (same == job.ranks.end()) {
      job.ranks.push_back(std::move(rank));
    } else if (same->record->file().begun.steady < rank.record->file().begun.steady) {
      *same = std::move(rank);
    }
  }
  std::vector<Job> jobs;
  for (auto& [key, job] : found) {
    if (is_chosen(job, chosen)) jobs.push_back(std::move(job));
  }
  for (auto& job : jobs) {
    add_other_hosts(job);
    job.diagnosis = detail::diagnose(job.ranks, shortest_wait);
  }
  return jobs;
}

/// Measures the processor time of the ranks of this host, and takes the memory of all ranks.
void measure(std::vector<Job>& jobs) {
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  for (auto& job : jobs) {
    for (const auto& rank : job.ranks) job.loads.push_back({.before = processor_time(rank)});
  }
  std::this_thread::sleep_for(measured_time);
  const std::chrono::duration<double, std::milli> time = Clock::now() - begin;
  for (auto& job : jobs) {
    for (std::size_t i = 0; i < job.ranks.size(); ++i) {
      const auto& rank = job.ranks[i];
      auto& load = job.loads[i];
      const auto last = processor_time(rank);
      const auto& file = rank.record->file();
      const auto bytes = is_remote(rank) ? file.resident_bytes : detail::resident_bytes(file.pid);
      if (load.before && last) {
        load.processors = static_cast<double>((*last - *load.before).count()) / time.count();
      }
      if (rank.state != State::ended && bytes >= 0) load.bytes = bytes;
    }
  }
}

std::string_view name(const ObservedRank& rank) {
  switch (rank.state) {
    case State::stopped:
      return "stopped";
    case State::ended:
      return "ended";
    default:
      return rank.record->wait() ? "waiting" : "computing";
  }
}

void print(const Job& job) {
  const auto& first = job.first();
  const bool several = job.has_several_hosts();
  const auto title = concat("job ", job.name, ": ", first.file().program, ", ",
                            detail::plural(first.size(), "rank"), ", backend ",
                            first.file().backend, several ? "" : concat(", host ", first.host()));
  std::vector<detail::Row> rows{
      {"rank", "pid", "state", "step", "CPU", "memory", "last call", "operation"}};
  if (several) rows.front().insert(rows.front().begin() + 1, "host");
  for (std::size_t i = 0; i < job.ranks.size(); ++i) {
    const auto& rank = job.ranks[i];
    const auto& record = *rank.record;
    const auto& load = job.loads[i];
    const auto* last = record.entries().empty() ? nullptr : &record.entries().back();
    const auto& wait = record.wait();
    const std::string operation = wait ? concat(detail::operation_text(record, wait->entry),
                                                ", for ", detail::duration_text(wait->seconds))
                                  : last != nullptr
                                      ? concat("after ", detail::operation_text(record, *last))
                                      : "none yet";
    rows.push_back({concat(rank.rank()), concat(record.file().pid), std::string(name(rank)),
                    record.step() == 0 ? "-" : concat(record.step()),
                    load.processors ? concat(std::lround(*load.processors * 100), " %") : "-",
                    load.bytes ? concat(*load.bytes >> 20, " MiB") : "-",
                    concat(detail::duration_text(record.silent()), " ago"), operation});
    if (several) rows.back().insert(rows.back().begin() + 1, std::string(record.host()));
  }
  std::cout << detail::table(title, rows);
  for (const auto& text : job.suspicions) std::cout << "  " << text << '\n';
  std::set<int> silent;
  for (const auto& host : job.silent) {
    silent.insert(host.ranks.begin(), host.ranks.end());
    std::cout << "  no answer from host " << host.name << " within "
              << std::chrono::duration<double>(longest_question).count()
              << " s: " << detail::rank_list(host.ranks)
              << (host.is_of_silent_rank_0() ? ", through which other hosts are asked" : "")
              << '\n';
  }
  std::vector<int> absent;
  for (const int rank : job.unseen()) {
    if (!silent.contains(rank)) absent.push_back(rank);
  }
  if (!absent.empty()) {
    std::cout << "  " << detail::rank_list(absent) << (absent.size() == 1 ? " has" : " have")
              << " no record here: ended, before init(), or on another host (run `lockstep status "
              << job.name << "` there)\n";
  }
  const bool colour = detail::shows_colour(STDOUT_FILENO);
  for (std::size_t i = 0; i < job.diagnosis.text.size(); ++i) {
    std::cout << (i == 0 ? "  => " : "     ")
              << detail::in_tone(job.diagnosis.text[i], detail::Tone::error, colour && i == 0)
              << '\n';
  }
}

ordered_json json_of(const detail::FlightRecord& record, const detail::FlightRecord::Entry& entry) {
  const auto* group = record.group(entry.group);
  return {{"text", detail::operation_text(record, entry)},
          {"operation", lockstep::name(entry.collective)},
          {"sequence", entry.sequence},
          {"bytes", entry.bytes},
          {"dtype", lockstep::name(entry.dtype)},
          {"peer", entry.peer},
          {"group", group == nullptr ? std::vector<int>() : group->members},
          {"group_number", group == nullptr ? 0 : group->earlier},
          {"complete", entry.ended.has_value()}};
}

ordered_json json_of(const Job& job) {
  ordered_json ranks = ordered_json::array();
  for (std::size_t i = 0; i < job.ranks.size(); ++i) {
    const auto& rank = job.ranks[i];
    const auto& record = *rank.record;
    const auto& load = job.loads[i];
    ordered_json one{{"rank", rank.rank()},       {"pid", record.file().pid},
                     {"host", record.host()},     {"state", name(rank)},
                     {"step", record.step()},     {"last_call_seconds", record.silent()},
                     {"remote", is_remote(rank)}, {"processors", nullptr},
                     {"resident_bytes", nullptr}, {"waits_in", nullptr},
                     {"waits_seconds", nullptr},  {"last", nullptr}};
    if (load.processors) one["processors"] = *load.processors;
    if (load.bytes) one["resident_bytes"] = *load.bytes;
    if (const auto& wait = record.wait()) {
      one["waits_in"] = json_of(record, wait->entry);
      one["waits_seconds"] = wait->seconds;
    }
    if (!record.entries().empty()) one["last"] = json_of(record, record.entries().back());
    ranks.push_back(std::move(one));
  }
  const auto& found = job.diagnosis;
  ordered_json edges = ordered_json::array();
  ordered_json operation;
  for (const auto& edge : found.edges) {
    const auto rank = std::ranges::find(job.ranks, edge.rank, &ObservedRank::rank);
    const auto waits_in = json_of(*rank->record, edge.wait.entry);
    if (!found.waiting.empty() && found.waiting.front() == edge.rank) operation = waits_in;
    edges.push_back({{"rank", edge.rank}, {"in", waits_in}, {"waits_for", edge.missing}});
  }
  ordered_json silent = ordered_json::array();
  for (const auto& host : job.silent) {
    silent.push_back({{"host", host.name}, {"ranks", host.ranks}});
  }
  return {{"job", job.name},
          {"size", job.first().size()},
          {"backend", job.first().file().backend},
          {"ranks", std::move(ranks)},
          {"unseen", job.unseen()},
          {"no_answer", std::move(silent)},
          {"suspected", job.suspicions},
          {"diagnosis",
           {{"kind", detail::name(found.kind)},
            {"ranks", found.ranks},
            {"operation", std::move(operation)},
            {"waiting", found.waiting},
            {"seconds", found.seconds},
            {"edges", std::move(edges)},
            {"text", found.text}}}};
}

/// Prints the jobs once. Returns how many there are.
std::size_t show(const StatusArguments& arguments) {
  auto jobs = read_jobs(arguments.job);
  measure(jobs);
  if (arguments.json) {
    ordered_json all = ordered_json::array();
    for (const auto& job : jobs) all.push_back(json_of(job));
    std::cout << all.dump(-1, ' ', false, ordered_json::error_handler_t::replace) << std::endl;
    return jobs.size();
  }
  for (const auto& job : jobs) print(job);
  std::cout << std::flush;
  return jobs.size();
}

int status(const StatusArguments& arguments) {
  const bool terminal = detail::is_capable_terminal(STDOUT_FILENO);
  for (bool first = true;; first = false) {
    if (arguments.watch && terminal && !arguments.json) std::cout << "\033[H\033[2J";
    const auto jobs = show(arguments);
    if (jobs == 0 && first && !arguments.job.empty()) {
      throw Error(concat("status: no job ", arguments.job,
                         " of this user has ranks on this host; run `lockstep status` for all"));
    }
    if (jobs == 0 && first && !arguments.json) {
      std::cout << "no ranks of this user on this host\n";
    }
    if (!arguments.watch || jobs == 0 || !std::cout) return 0;
    std::this_thread::sleep_for(watch_interval);
  }
}

}  // namespace

void add_status(CLI::App& app, int& exit_code) {
  const auto arguments = std::make_shared<StatusArguments>();
  auto* command = app.add_subcommand("status", "Show what each rank does, and why a job waits");
  command->footer(
      "Reads records that the ranks keep in /dev/shm, and asks the other hosts of a job over its "
      "control connections. Stops and signals no rank.");
  add_value(command, "JOB", arguments->job, "",
            "A job: the beginning of its name, or the pid of a rank or of its launcher (default: "
            "all of this user)");
  command->add_flag("--watch", arguments->watch, "Repeat every second, until the ranks have ended");
  command->add_flag("--json", arguments->json, "Print one JSON array instead");
  command->callback([arguments, &exit_code] { exit_code = status(*arguments); });
}

}  // namespace lockstep::cli
