#include "record/export.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/error.h"
#include "tests/temporary_folder.h"

namespace lockstep::inline v0_2::record {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::TemporaryFolder;

Run small_run() {
  Run run;
  run.name = "a \"run\"";
  run.curves = {{"loss", {{1, 0.5}, {2, 0.1}}}, {"x,\"y\"", {{2, NAN}, {3, 4}}}};
  run.moments = {{1, {.elapsed = 1.5, .wall_time = 1000.25}},
                 {2, {.elapsed = 2, .wall_time = 1001}},
                 {3, {.elapsed = 3, .wall_time = {}}}};
  run.environment = {{"strategy", "fp32"}};
  return run;
}

std::string exported(const Run& run, ExportFormat format, const char* name,
                     std::vector<std::string>* remarks = nullptr) {
  const TemporaryFolder folder;
  auto told = write_export(run, format, folder / name);
  if (remarks != nullptr) *remarks = std::move(told);
  std::ifstream in(folder / name, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

TEST(Export, CsvHasARowAStep) {
  EXPECT_EQ(exported(small_run(), ExportFormat::csv, "run.csv"),
            "step,elapsed,wall_time,loss,\"x,\"\"y\"\"\"\r\n"
            "1,1.5,1000.25,0.5,\r\n"
            "2,2,1001,0.1,nan\r\n"
            "3,3,,,4\r\n");
  auto run = small_run();
  run.curves.resize(1);
  run.intervals = {
      {.step = 2, .steps = 2, .ranks = {{.seconds = 1, .waiting = 0.5, .samples = 8}}}};
  EXPECT_THAT(exported(run, ExportFormat::csv, "run.csv"),
              HasSubstr("loss,interval/step_seconds,interval/compute_seconds,"
                        "interval/waiting_seconds,interval/samples_per_second\r\n"
                        "1,1.5,1000.25,0.5,,,,\r\n2,2,1001,0.1,0.5,0.25,0.25,8\r\n"));
  EXPECT_EQ(exported({}, ExportFormat::csv, "run.csv"), "step,elapsed,wall_time\r\n");
}

TEST(Export, PrometheusHasTheLastValues) {
  auto run = small_run();
  run.curves.push_back({"bad\nname\\\xff", {{1, NAN}}});
  run.intervals = {
      {.step = 2, .steps = 2, .ranks = {{.seconds = 1, .waiting = 0.5, .bytes = 7, .samples = 8}}}};
  const auto text = exported(run, ExportFormat::prometheus, "run.prom");
  for (const char* part :
       {"# TYPE lockstep_metric gauge\n",
        "lockstep_metric{run=\"a \\\"run\\\"\",metric=\"loss\"} 0.1\n",
        "metric=\"x,\\\"y\\\"\"} 4\n", "metric=\"bad\\nname\\\\\xef\xbf\xbd\"} NaN\n",
        "lockstep_step{run=\"a \\\"run\\\"\"} 3\n", "rank=\"0\",activity=\"compute\"} 0.5\n",
        "rank=\"0\",activity=\"waiting\"} 0.5\n",
        "lockstep_rank_exchanged_bytes_total{run=\"a \\\"run\\\"\",rank=\"0\"} 7\n",
        "lockstep_step_seconds{run=\"a \\\"run\\\"\"} 0.5\n"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
  EXPECT_TRUE(text.ends_with('\n')) << "the collector needs it";
}

TEST(Export, MlflowHasBodiesOfLogBatch) {
  auto run = small_run();
  run.curves.push_back({"/../loss", {{3, 1}}});
  run.curves.push_back({"x__y_", {{3, 1}}});
  Curve many;
  for (int step = 1; step <= 2500; ++step) many[step] = step;
  run.curves.push_back({"val/größe", many});
  std::vector<std::string> remarks;
  const auto text = exported(run, ExportFormat::mlflow, "run.jsonl", &remarks);
  EXPECT_THAT(remarks, ElementsAre("--export mlflow: 1 value is no number, and left out"));
  std::map<std::string, std::map<std::int64_t, nlohmann::json>> found;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const auto body = nlohmann::json::parse(line);
    if (body.contains("params")) {
      EXPECT_EQ(body["params"][0], (nlohmann::json{{"key", "strategy"}, {"value", "fp32"}}));
      continue;
    }
    EXPECT_LE(body.at("metrics").size(), 1000U);
    for (const auto& metric : body["metrics"]) found[metric["key"]][metric["step"]] = metric;
  }
  EXPECT_EQ(found["loss"][1]["timestamp"], 1000250);
  EXPECT_EQ(found["loss"][2]["value"], 0.1);
  EXPECT_EQ(found["x__y_"].size(), 1U);
  EXPECT_EQ(found["x__y__2"].size(), 1U) << "two names stay two";
  EXPECT_EQ(found["____loss"].size(), 1U) << "MLflow refuses paths that lead up";
  EXPECT_EQ(found["val/gr____e"].size(), 2500U);
}

// --- Weights & Biases --------------------------------------------------------------------------

std::uint32_t crc32(std::string_view bytes) {
  std::uint32_t sum = ~0U;
  for (const char byte : bytes) {
    sum ^= static_cast<unsigned char>(byte);
    for (int bit = 0; bit < 8; ++bit) sum = (sum & 1) != 0 ? sum >> 1 ^ 0xedb88320U : sum >> 1;
  }
  return ~sum;
}

/// The records of a log as LevelDB's documentation describes it.
std::vector<std::string> records_of(const std::string& file) {
  EXPECT_EQ(file.substr(0, 7), std::string(":W&B\xe1\xbe\0", 7));
  std::vector<std::string> records;
  std::string open;
  for (std::size_t at = 7; at < file.size();) {
    const std::size_t room = 32768 - at % 32768;
    if (room < 7) {
      at += room;
      continue;
    }
    std::uint32_t sum = 0;
    std::uint16_t size = 0;
    std::memcpy(&sum, file.data() + at, 4);
    std::memcpy(&size, file.data() + at + 4, 2);
    const char kind = file[at + 6];
    EXPECT_LE(size + 7U, room) << "a fragment ends with its block";
    EXPECT_EQ(sum, crc32(std::string_view(file).substr(at + 6, size + 1U)));
    EXPECT_EQ(open.empty(), kind == 1 || kind == 2);
    open += file.substr(at + 7, size);
    if (kind == 1 || kind == 4) records.push_back(std::exchange(open, {}));
    at += 7U + size;
  }
  EXPECT_TRUE(open.empty());
  return records;
}

/// The fields of a protocol buffer with their texts; integers as decimal numbers.
std::vector<std::pair<int, std::string>> fields_of(std::string_view text) {
  const auto varint = [&] {
    std::uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      const auto byte = static_cast<unsigned char>(text.at(0));
      text.remove_prefix(1);
      value |= static_cast<std::uint64_t>(byte & 127) << shift;
      if (byte < 128) return value;
    }
  };
  std::vector<std::pair<int, std::string>> fields;
  while (!text.empty()) {
    const auto key = varint();
    const auto value = varint();
    if ((key & 7) == 0) {
      fields.emplace_back(key >> 3, std::to_string(value));
    } else {
      EXPECT_EQ(key & 7, 2U);
      fields.emplace_back(key >> 3, std::string(text.substr(0, value)));
      text.remove_prefix(value);
    }
  }
  return fields;
}

TEST(Export, WandbHasAnOfflineRun) {
  auto run = small_run();
  run.curves.push_back({std::string(100'000, 'n'), {{2, 7}}});  // of several blocks
  const auto records = records_of(exported(run, ExportFormat::wandb, "run.wandb"));
  ASSERT_EQ(records.size(), 6U);
  std::vector<int> kinds;
  std::vector<std::map<std::string, std::string>> rows;
  for (const auto& record : records) {
    const auto fields = fields_of(record);
    EXPECT_EQ(fields.at(0), std::pair(1, std::to_string(kinds.size() + 1)));
    kinds.push_back(fields.at(1).first);
    if (kinds.back() != 2) continue;
    auto& row = rows.emplace_back();
    for (const auto& [field, text] : fields_of(fields[1].second)) {
      const auto parts = fields_of(text);
      if (field == 1) row[parts.at(0).second] = parts.at(1).second;
      if (field == 2) {
        EXPECT_EQ(parts.at(0).second, row["_step"]);
      }
    }
  }
  EXPECT_THAT(kinds, ElementsAre(21, 17, 2, 2, 2, 18)) << "header, run, three of history, exit";
  EXPECT_EQ(rows[0],
            (std::map<std::string, std::string>{
                {"loss", "0.5"}, {"_timestamp", "1000.25"}, {"_runtime", "1.5"}, {"_step", "1"}}));
  EXPECT_EQ(rows[1]["x,\"y\""], "NaN");
  EXPECT_EQ(rows[1][std::string(100'000, 'n')], "7.0");
  EXPECT_EQ(rows[2]["_step"], "3");
  const auto about = fields_of(fields_of(records[1]).at(1).second);
  EXPECT_THAT(about, ::testing::Contains(std::pair(3, std::string("lockstep"))));
  EXPECT_THAT(about, ::testing::Contains(std::pair(8, std::string("a \"run\""))));
}

TEST(Export, RefusesNamesThatNoReaderFinds) {
  const TemporaryFolder folder;
  EXPECT_THROW(write_export({}, ExportFormat::wandb, folder / "run.txt"), InvalidArgument);
  EXPECT_THROW(write_export({}, ExportFormat::prometheus, folder / "run.txt"), InvalidArgument);
  EXPECT_THROW(write_export({}, ExportFormat::csv, folder / "no/such/file"), Error);
  EXPECT_THROW(parse_export_format("yaml"), InvalidArgument);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

}  // namespace
}  // namespace lockstep::record
