#include "record/folder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <ctime>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <system_error>
#include <tuple>
#include <utility>

#include "core/environment.h"
#include "core/json_depth.h"
#include "core/signal_safe_text.h"
#include "core/system/denormals_guard.h"
#include "core/system/files.h"
#include "core/system/process.h"
#include "core/system/topology.h"
#include "core/text.h"
#include "lockstep/denormals.h"
#include "lockstep/error.h"
#include "lockstep/version.h"
#include "record/json_text.h"
#include "record/scalar.h"

namespace lockstep::inline v0_2::record {
namespace {

/// Whether the file ends within a line, as that of a run that was killed may.
bool has_open_line(int fd, off_t size) {
  char last = '\n';
  return size > 0 && pread(fd, &last, 1, size - 1) == 1 && last != '\n';
}

}  // namespace

AppendFile::AppendFile(std::filesystem::path path, bool kept) : path_(std::move(path)) {
  constexpr int flags = O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW;
  file_ = detail::Descriptor(open(path_.c_str(), flags | (kept ? 0 : O_TRUNC), 0666));
  if (!file_) {
    throw Error(
        detail::concat(path_.string(), ": cannot write: ", detail::why_not_opened(path_, errno)));
  }
  if (kept && has_open_line(file_.get(), lseek(file_.get(), 0, SEEK_END))) add("\n");
}

void AppendFile::add(std::string_view record) noexcept {
  if (!file_ || error_ != 0) return;
  const off_t before = lseek(file_.get(), 0, SEEK_END);
  if (detail::write_all(file_.get(), record.data(), record.size())) return;
  error_ = errno;
  // Half a record would spoil what is written before and after it.
  if (before >= 0) std::ignore = ftruncate(file_.get(), before);
}

void write_file(const std::filesystem::path& path, std::string_view text) {
  detail::AtomicFile file(path, detail::AtomicFile::Use::log);
  file.write(text);
  file.commit();
}

namespace {

using detail::concat;

constexpr std::string_view event_prefix = "events.out.tfevents.";

std::map<std::string, std::string> lockstep_variables() {
  std::map<std::string, std::string> found;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    if (!text.starts_with("LOCKSTEP_")) continue;
    const auto equals = text.find('=');
    if (equals == text.npos) continue;
    const auto name = text.substr(0, equals);
    found.emplace(name, detail::is_secret(name) ? "(set)" : text.substr(equals + 1));
  }
  return found;
}

}  // namespace

void write_environment(const std::filesystem::path& folder, const RunEnvironment& environment) {
  // As the kernel keeps it: a program that writes a log need not pass on main's arguments.
  const auto command = detail::lines_in(regular_file("/proc/self/cmdline").value_or(""), '\0');
  const nlohmann::ordered_json all = {{"lockstep", version()},
                                      {"started", detail::utc_text("%Y-%m-%dT%H:%M:%SZ")},
                                      {"ranks", environment.ranks},
                                      {"hosts", environment.hosts},
                                      {"cores", environment.cores},
                                      {"backend", environment.backend},
                                      {"strategy", environment.strategy},
                                      {"threads", environment.threads},
                                      {"denormals", detail::denormals_text(flushes_denormals())},
                                      {"restarts", Environment::get().restart_count},
                                      {"command", command},
                                      {"variables", lockstep_variables()},
                                      {"event_files", environment.event_files}};
  write_file(folder / environment_name,
             all.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + '\n');
}

std::vector<std::string> event_files_of(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  const auto text = regular_file(folder / environment_name);
  if (!text || detail::json_is_too_deep(*text)) return names;
  const auto all = nlohmann::json::parse(*text, nullptr, false);
  if (!all.is_object() || !all.contains("event_files")) return names;
  for (const auto& name : all["event_files"]) {
    if (!name.is_string()) continue;
    const auto file = name.get<std::string>();
    // The file may come from elsewhere, so a name must not lead outside the folder.
    if (file.starts_with(event_prefix) && file.find('/') == file.npos) names.push_back(file);
  }
  return names;
}

std::string new_event_file_name(const std::filesystem::path& folder) {
  const auto name =
      concat(event_prefix, std::time(nullptr), '.', detail::host_name(), '.', getpid());
  // A process may open the log twice within a second.
  auto free_name = name;
  std::error_code ignored;
  for (int number = 1; std::filesystem::exists(folder / free_name, ignored); ++number) {
    free_name = concat(name, '.', number);
  }
  return free_name;
}

void make_folder(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw Error(concat(folder.string(), ": cannot make the folder: ", error.message()));
}

namespace {

using Numbers = std::vector<std::pair<std::string, JsonNumber>>;

const JsonNumber* value_of(const Numbers& line, std::string_view name) {
  const auto found = std::ranges::find(line, name, &Numbers::value_type::first);
  return found == line.end() ? nullptr : &found->second;
}

bool is_repeated(const Numbers& line, const Continuation& from) {
  const auto* step = value_of(line, "step");
  if (step == nullptr || !step->whole) return false;
  if (*step->whole != from.step) return *step->whole > from.step;
  const auto is_replaced = [&](const auto& named) {
    return is_position(named.first) ||
           std::ranges::find(from.names, named.first) != from.names.end();
  };
  return !from.names.empty() && std::ranges::all_of(line, is_replaced);
}

}  // namespace

Discarded discard_repeated(const std::filesystem::path& folder, const char* name,
                           const Continuation& from) {
  const auto path = folder / name;
  const auto text = regular_file(path);
  if (!text) return {};
  Discarded result;
  std::string kept;
  std::string moved;
  for (const auto& line : detail::lines_in(*text)) {
    const auto numbers = flat_numbers(line);
    if (numbers && is_repeated(*numbers, from)) {
      ++result.records;
      moved += line + '\n';
      continue;
    }
    kept += line + '\n';
    const auto* step = numbers ? value_of(*numbers, "step") : nullptr;
    if (step != nullptr && step->whole == from.step) result.keeps_step = true;
    const auto* elapsed = numbers ? value_of(*numbers, "elapsed") : nullptr;
    if (elapsed != nullptr && std::isfinite(elapsed->value)) {
      result.elapsed = std::max(result.elapsed, elapsed->value);
    }
  }
  if (result.records == 0) return result;

  const nlohmann::ordered_json heading = {
      {"discarded_from", name},
      {"continued_at_step", std::max<std::int64_t>(from.step, 0)},
      {"time", detail::utc_text("%Y-%m-%dT%H:%M:%SZ")}};
  AppendFile discarded(folder / discarded_name, true);
  discarded.add(heading.dump() + '\n' + moved);
  if (discarded.error() != 0) {
    throw Error(detail::concat(discarded.path().string(),
                               ": cannot write: ", std::strerror(discarded.error())));
  }
  write_file(path, kept);
  return result;
}

}  // namespace lockstep::record
