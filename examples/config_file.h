#pragma once

// The settings file of the example programs.

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <lockstep/lockstep.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <istream>
#include <iterator>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace program {

/// The error about a name that is none of the program's options. dashes: "--", or "" in a file.
inline CLI::ValidationError unknown_option(const CLI::App& app, const std::string& before,
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

/// The file of --config: lines NAME = VALUE, with the names of the options without dashes. Sets the
/// options that the command line does not set, so that every error has the names of file and key.
class ConfigFile : public CLI::ConfigTOML {
 public:
  explicit ConfigFile(CLI::App& app) : app_(&app) {}

  std::vector<CLI::ConfigItem> from_config(std::istream& in) const override {
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

  bool was_read() const { return text_.has_value(); }
  std::string path() const { return app_->get_config_ptr()->as<std::string>(); }

  /// Throws InvalidArgument on every rank unless all ranks have read the same contents.
  void check_same(const lockstep::Group& world) const {
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

 private:
  /// CLI11 takes a # in quotes for a comment, too.
  void check_comments() const {
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

  void set(const CLI::ConfigItem& item) const {
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

  CLI::App* app_;
  mutable std::optional<std::string> text_;
};

/// The error about a file of --config that cannot be read.
inline CLI::ValidationError unreadable(const ConfigFile& config) {
  errno = 0;
  const bool is_folder = std::filesystem::is_directory(config.path());
  if (!is_folder) std::ifstream(config.path()).peek();
  return CLI::ValidationError(
      "--config " + config.path(),
      std::string("cannot read: ") + std::strerror(is_folder ? EISDIR : errno));
}

}  // namespace program
