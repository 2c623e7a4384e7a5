#include "record/report.h"

#include <CLI/CLI.hpp>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>

#include "cli/commands.h"
#include "record/folder.h"

namespace lockstep::cli {
namespace {

struct ReportArguments {
  std::string folder;
  std::string page;
};

}  // namespace

void add_report(CLI::App& app, int& exit_code) {
  const auto arguments = std::make_shared<ReportArguments>();
  auto* command =
      app.add_subcommand("report", "Write a page about a run: curves, times of the ranks, bytes");
  command->add_option("DIR", arguments->folder, "Folder that the run got as --log-dir")->required();
  command->add_option("-o,--output", arguments->page, "Page to write (default: DIR/report.html)");
  command->callback([arguments, &exit_code] {
    const std::filesystem::path folder = arguments->folder;
    std::filesystem::path page = arguments->page;
    if (page.empty()) page = folder / record::report_name;
    for (const auto& remark : record::write_report(folder, page)) {
      std::cerr << "lockstep: report: " << remark << '\n';
    }
    std::cout << page.string() << '\n';
    exit_code = 0;
  });
}

}  // namespace lockstep::cli
