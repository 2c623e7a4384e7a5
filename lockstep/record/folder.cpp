#include "lockstep/record/folder.h"

#include <unistd.h>

#include <ctime>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>

#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"
#include "lockstep/core/host_name.h"
#include "lockstep/core/text.h"
#include "lockstep/core/version.h"
#include "lockstep/record/whole_file.h"

namespace lockstep::record {
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

std::string time_now() {
  const auto now = std::time(nullptr);
  tm parts{};
  char text[32] = {};
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &parts));
  return text;
}

}  // namespace

void write_environment(const std::filesystem::path& folder, const RunEnvironment& environment) {
  const nlohmann::ordered_json all = {{"lockstep", version()},
                                      {"started", time_now()},
                                      {"ranks", environment.ranks},
                                      {"hosts", environment.hosts},
                                      {"backend", environment.backend},
                                      {"strategy", environment.strategy},
                                      {"threads", environment.threads},
                                      {"restarts", Environment::get().restart_count},
                                      {"command", command_line()},
                                      {"variables", lockstep_variables()},
                                      {"event_files", environment.event_files}};
  WholeFile file(folder / environment_name);
  file.out() << all.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) << '\n';
  file.commit();
}

std::vector<std::string> event_files_of(const std::filesystem::path& folder) {
  std::ifstream in(folder / environment_name);
  const auto all = nlohmann::json::parse(in, nullptr, false);
  std::vector<std::string> names;
  if (!all.is_object() || !all.contains("event_files")) return names;
  for (const auto& name : all["event_files"]) {
    if (!name.is_string()) continue;
    const auto text = name.get<std::string>();
    // Whoever wrote it: nothing outside the folder is meant.
    if (text.starts_with(event_prefix) && text.find('/') == text.npos) names.push_back(text);
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
