#include "record/page/report.h"

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "cli/command_line.h"
#include "lockstep/error.h"
#include "record/folder.h"

namespace lockstep::cli {
namespace {

struct ReportArguments {
  std::vector<std::string> folders;
  std::string page;
  std::vector<std::string> exported;  ///< format and file
  bool serves = false;
  std::uint16_t port = 0;
};

void print(const std::vector<std::string>& remarks) {
  for (const auto& remark : remarks) std::cerr << "lockstep: report: " << remark << '\n';
}

[[noreturn]] void serve(const std::filesystem::path& folder, std::uint16_t port) {
  record::LiveReport report(folder, port);
  std::cout << report.address() << " follows " << folder.string() << "; Ctrl-C ends it"
            << std::endl;
  for (;;) report.answer(std::chrono::hours(1));
}

void make_report(const ReportArguments& arguments) {
  const std::filesystem::path folder = arguments.folders.front();
  if (arguments.folders.size() > 1 && (arguments.serves || !arguments.exported.empty())) {
    throw InvalidArgument(
        "report: got two folders, expected one with --serve and --export. Name one run.");
  }
  if (arguments.serves) serve(folder, arguments.port);
  std::filesystem::path file = arguments.page;
  if (!arguments.exported.empty()) {
    record::check_export_format(arguments.exported[0]);
    file = arguments.exported[1];
    const auto run = record::read_run(folder);
    record::write_csv(run, file);
    print(run.remarks);
  } else if (arguments.folders.size() > 1) {
    if (file.empty()) file = "comparison.html";
    print(record::write_comparison(folder, arguments.folders[1], file));
  } else {
    if (file.empty()) file = folder / record::report_name;
    print(record::write_report(folder, file));
  }
  std::cout << file.string() << '\n';
}

}  // namespace

void add_report(CLI::App& app, int& /*exit_code*/) {
  const auto arguments = std::make_shared<ReportArguments>();
  auto* command =
      app.add_subcommand("report", "Show a run as a page, compare two runs, or export the metrics");
  command
      ->add_option("DIR", arguments->folders,
                   "The folder of a program's run log (RunLog, the examples' --run-log), which is "
                   "not that of lockstep run --log-dir. Two folders: compares the runs")
      ->required()
      ->expected(1, 2);
  auto* output = command->add_option(
      "-o,--output", arguments->page,
      "The page to write (default: DIR/report.html; of two runs comparison.html)");
  auto* exported = command
                       ->add_option("--export", arguments->exported,
                                    "Write the metrics in another format instead: csv")
                       ->expected(2)
                       ->type_name("FORMAT FILE");
  auto* serves = command->add_flag("--serve", arguments->serves,
                                   "Show the page of a run in progress at an address of this "
                                   "machine, until Ctrl-C");
  command->add_option("--port", arguments->port, "Port of --serve (default: a free one)")
      ->needs(serves);
  exported->excludes(output);
  serves->excludes(output);
  serves->excludes(exported);
  command->callback([arguments] { make_report(*arguments); });
}

}  // namespace lockstep::cli
