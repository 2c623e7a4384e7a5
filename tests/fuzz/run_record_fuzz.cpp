#include <nlohmann/json.hpp>

#include "record/folder.h"
#include "record/page/report.h"
#include "tests/fuzz/fuzz.h"
#include "tests/record/page_fault.h"
#include "tests/temporary_folder.h"

namespace lockstep::inline v0_2::record {
namespace {

using fuzzing::require;
using nlohmann::json;

void read(const std::filesystem::path& folder, const char* name, std::string_view bytes) {
  for (const char* file : {metrics_name, intervals_name, environment_name})
    fuzzing::write_file(folder / file, "");
  fuzzing::write_file(folder / name, bytes);
  const fuzzing::MemoryLimit memory(4096 * bytes.size() + (4 << 20));
  const Run run = read_run(folder);
  for (const Interval& interval : run.intervals) {
    require(interval.ranks.size() == run.intervals.back().ranks.size(),
            "all intervals have the same ranks");
    const auto again = parse_interval(interval_line(interval));
    require(again && interval_line(*again) == interval_line(interval),
            "a interval written and read again is equal");
  }
  for (const std::string& file : event_files_of(folder))
    require(file.find('/') == std::string::npos, "an event file lies in the folder");
  const std::string page = report_page(run, "run");
  const std::string fault = testing::page_fault(page);
  require(fault.empty(), "the report's page is well-formed: " + fault);
  require(json(page).dump().size() > page.size(), "the report's page is UTF-8");
  for (const char* coordinate : {" x=\"", " y=\"", " cx=\"", " cy=\"", " width=\""})
    for (const char* no_number : {"nan", "-nan", "inf", "-inf"})
      require(page.find(std::string(coordinate) + no_number) == std::string::npos,
              "a coordinate of the report's page is a number");
}

}  // namespace
}  // namespace lockstep::record

/// The first byte names the file that the rest is read as.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lockstep::record;
  static const lockstep::testing::TemporaryFolder folder;
  if (size == 0) return 0;
  const std::string_view rest = lockstep::fuzzing::text_of({data + 1, size - 1});
  for (const auto& [letter, name] :
       {std::pair('m', metrics_name), {'l', intervals_name}, {'e', environment_name}})
    if (data[0] == letter) read(folder.path(), name, rest);
  return 0;
}
