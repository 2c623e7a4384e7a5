#include "record/folder.h"

#include <unistd.h>

#include <ctime>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>

#include "core/denormals_guard.h"
#include "core/environment.h"
#include "core/host_name.h"
#include "core/json_depth.h"
#include "core/text.h"
#include "core/utc_text.h"
#include "lockstep/denormals.h"
#include "lockstep/error.h"
#include "lockstep/version.h"
#include "record/json_text.h"
#include "record/whole_file.h"

namespace lockstep::inline v0_2::record {
namespace {

using detail::concat;

constexpr std::string_view event_prefix = "events.out.tfevents.";

/// As the kernel keeps it: who writes a log need not be handed main's arguments.
std::vector<std::string> command_line() {
  std::ifstream in("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> words;
  for (std::string word; std::getline(in, word, '\0');) words.push_back(word);
  return words;
}

std::map<std::string, std::string> lockstep_variables() {
  std::map<std::string, std::string> found;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    if (!text.starts_with("LOCKSTEP_")) continue;
    const auto equals = text.find('=');
    if (equals != text.npos) found.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return found;
}

}  // namespace

void write_environment(const std::filesystem::path& folder, const RunEnvironment& environment) {
  const nlohmann::ordered_json all = {{"lockstep", version()},
                                      {"started", detail::utc_text("%Y-%m-%dT%H:%M:%SZ")},
                                      {"ranks", environment.ranks},
                                      {"hosts", environment.hosts},
                                      {"backend", environment.backend},
                                      {"strategy", environment.strategy},
                                      {"threads", environment.threads},
                                      {"denormals", detail::denormals_text(flushes_denormals())},
                                      {"restarts", Environment::get().restart_count},
                                      {"command", command_line()},
                                      {"variables", lockstep_variables()},
                                      {"event_files", environment.event_files}};
  WholeFile file(folder / environment_name);
  file.out() << all.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) << '\n';
  file.commit();
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

std::string new_event_file_name() {
  return concat(event_prefix, std::time(nullptr), '.', detail::host_name(), '.', getpid());
}

void make_folder(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (!error && !std::filesystem::is_directory(folder, error) && !error) {
    error = std::make_error_code(std::errc::not_a_directory);
  }
  if (error) throw Error(concat(folder.string(), ": cannot make the folder: ", error.message()));
}

}  // namespace lockstep::record
