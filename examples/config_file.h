#pragma once

// The settings file of the example programs.

#include <lockstep/lockstep.h>

#include <CLI/CLI.hpp>
#include <istream>
#include <optional>
#include <string>
#include <vector>

namespace program {

/// The error about a name that is none of the program's options. dashes: "--", or "" in a file.
CLI::ValidationError unknown_option(const CLI::App& app, const std::string& before,
                                    const std::string& name, const std::string& dashes);

/// The file of --config: lines NAME = VALUE, with the names of the options without dashes. Sets the
/// options that the command line does not set, so that every error has the names of file and key.
class ConfigFile : public CLI::ConfigTOML {
 public:
  explicit ConfigFile(CLI::App& app) : app_(&app) {}

  std::vector<CLI::ConfigItem> from_config(std::istream& in) const override;

  bool was_read() const { return text_.has_value(); }
  std::string path() const { return app_->get_config_ptr()->as<std::string>(); }

  /// Throws InvalidArgument on every rank unless all ranks have read the same contents.
  void check_same(const lockstep::Group& world) const;

 private:
  /// CLI11 takes a # in quotes for a comment, too.
  void check_comments() const;
  void set(const CLI::ConfigItem& item) const;

  CLI::App* app_;
  mutable std::optional<std::string> text_;
};

/// The error about a file of --config that cannot be read.
CLI::ValidationError unreadable(const ConfigFile& config);

}  // namespace program
