#include "config_file.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <set>
#include <sstream>

namespace program {

CLI::ValidationError unknown_option(const CLI::App& app, const std::string& before,
                                    const std::string& name, const std::string& dashes) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    if (dashes.empty() && !option->get_configurable()) continue;
    for (const auto& known : option->get_lnames()) names.push_back(dashes + known);
  }
  const std::string meant = lockstep::closest_match(name, names);
  return CLI::ValidationError(
      before + name, "unknown option" + (meant.empty() ? "" : ", did you mean " + meant + "?"));
}

std::vector<CLI::ConfigItem> ConfigFile::from_config(std::istream& in) const {
  text_.emplace(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  check_comments();
  std::istringstream lines(*text_);
  std::set<std::string> names;
  for (const CLI::ConfigItem& item : CLI::ConfigTOML::from_config(lines)) {
    if (!item.parents.empty())
      throw CLI::ValidationError(path() + ": [" + item.parents.front() + "]",
                                 "expected no sections");
    if (!names.insert(item.name).second)
      throw CLI::ValidationError(path() + ": " + item.name, "occurs twice");
    set(item);
  }
  return {};
}

void ConfigFile::check_same(const lockstep::Group& world) const {
  if (!text_) return;
  const auto digest = static_cast<std::int64_t>(std::hash<std::string>()(*text_));
  const at::Tensor all = at::empty({world.size()}, at::kLong);
  world.host().all_gather(all, at::full({1}, digest, at::kLong)).wait();
  for (int rank = 1; rank < world.size(); ++rank) {
    if (all[rank].item<std::int64_t>() != all[0].item<std::int64_t>())
      throw lockstep::InvalidArgument("--config " + path() + ": rank " + std::to_string(rank) +
                                      " read other contents than rank 0: copy the file to all "
                                      "hosts");
  }
}

void ConfigFile::check_comments() const {
  std::istringstream lines(*text_);
  int number = 1;
  for (std::string line; std::getline(lines, line); ++number) {
    const auto before = line.substr(0, line.find('#'));
    if (before.size() < line.size() && std::count(before.begin(), before.end(), '"') % 2 != 0)
      throw CLI::ValidationError(path() + ": line " + std::to_string(number),
                                 "a value in this file cannot contain #; pass it on the command "
                                 "line");
  }
}

void ConfigFile::set(const CLI::ConfigItem& item) const {
  CLI::Option* option = app_->get_option_no_throw("--" + item.name);
  if (option == nullptr) option = app_->get_option_no_throw(item.name);  // a positional
  if (option == nullptr || !option->get_configurable())
    throw unknown_option(*app_, path() + ": ", item.name, "");
  if (!option->empty()) return;
  try {
    if (option->get_expected_min() == 0) {
      const std::string value = option->get_flag_value(item.name, to_flag(item));
      if (value == "false") return;  // an option that is given may exclude another one
      option->add_result(value);
    } else {
      option->add_result(item.inputs);
    }
    option->run_callback();
  } catch (const CLI::ParseError& error) {
    throw CLI::ValidationError(path(), error.what());
  }
}

CLI::ValidationError unreadable(const ConfigFile& config) {
  errno = 0;
  const bool is_folder = std::filesystem::is_directory(config.path());
  if (!is_folder) std::ifstream(config.path()).peek();
  return CLI::ValidationError(
      "--config " + config.path(),
      std::string("cannot read: ") + std::strerror(is_folder ? EISDIR : errno));
}

}  // namespace program
