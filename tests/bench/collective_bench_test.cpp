#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "bench/pattern.h"
#include "bench/ranks.h"
#include "bench/session.h"
#include "bench/settings.h"
#include "lockstep/error.h"
#include "lockstep/types.h"
#include "tests/matchers.h"
#include "tests/ranks.h"

namespace lockstep::bench {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Settings small(Collective collective, int ranks) {
  Settings settings;
  settings.collective = collective;
  settings.ranks = ranks;
  settings.threads = true;
  settings.min_bytes = 1000;
  settings.max_bytes = 1'000'000;
  settings.factor = 1000;
  settings.check = true;
  settings.repeats = 2;
  return settings;
}

/// The rows that the threads of a host measure. Expects no wrong element.
std::vector<Row> rows_of(const Settings& settings) {
  std::vector<Row> rows;
  run_threads(settings, [&](Transport& transport) {
    measure_all(transport, settings, [&](const Row& row) { rows.push_back(row); });
  });
  for (const Row& row : rows) {
    if (settings.collective != Collective::barrier) {
      EXPECT_EQ(row.wrong, 0) << table_line(row);
    }
    EXPECT_GT(row.time_us, 0);
  }
  return rows;
}

TEST(CollectiveBench, FindsNothingWrongWithTheHostBackend) {
  for (const Collective collective : {Collective::all_reduce, Collective::broadcast,
                                      Collective::all_gather, Collective::reduce_scatter}) {
    for (const int ranks : {1, 2, 3}) {
      const auto rows = rows_of(small(collective, ranks));
      ASSERT_EQ(rows.size(), 4u);  // two sizes in two kinds of memory
      for (const Row& row : rows) {
        EXPECT_EQ(row.repeats, 2u);
        EXPECT_EQ(row.ranks, ranks);
      }
    }
  }
  const auto rows = rows_of(small(Collective::barrier, 2));
  ASSERT_EQ(rows.size(), 1u) << "a barrier has one size";
  EXPECT_EQ(rows[0].bytes, 0u);
}

TEST(CollectiveBench, ChecksEveryDtypeReductionAndWire) {
  for (const DType dtype : all_dtypes) {
    for (const ReduceOp op : all_reduce_ops) {
      if (!has_reduction(dtype, op)) continue;
      Settings settings = small(Collective::all_reduce, 3);
      settings.dtype = dtype;
      settings.op = op;
      settings.memories = {Memory::group};
      settings.max_bytes = settings.min_bytes;
      EXPECT_EQ(rows_of(settings).size(), 1u);
    }
  }
  for (const DType wire : {DType::f16, DType::bf16}) {
    Settings settings = small(Collective::all_reduce, 3);
    settings.wire = wire;
    for (const Row& row : rows_of(settings)) EXPECT_EQ(row.wire, wire);
  }
}

/// Spoils one element of every all_reduce of floats.
class Spoiling final : public CommunicatorTransport {
 public:
  using CommunicatorTransport::all_reduce;
  using CommunicatorTransport::CommunicatorTransport;
  void all_reduce(void* data, std::size_t count, DType dtype, ReduceOp op) override {
    CommunicatorTransport::all_reduce(data, count, dtype, op);
    if (dtype == DType::f32) *static_cast<std::byte*>(data) ^= std::byte{1};
  }
};

TEST(CollectiveBench, CountsWrongElementsOfAllRanks) {
  Settings settings = small(Collective::all_reduce, 2);
  settings.max_bytes = settings.min_bytes;
  std::vector<Row> rows;
  testing::run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    Spoiling spoiling(std::move(communicator));
    measure_all(spoiling, settings, [&](const Row& row) { rows.push_back(row); });
  });
  ASSERT_EQ(rows.size(), 2u);
  for (const Row& row : rows) {
    const std::int64_t exchanges = 2 * 64;  // repetitions, each a round of 64 small buffers
    EXPECT_EQ(row.wrong, 2 * exchanges);
  }
}

TEST(RunThreads, RaisesWhatTheFirstFailingRankThrew) {
  const auto throws = [](Transport& transport) {
    if (transport.rank() == 1) throw DataError("rank 1's own");
    transport.barrier();
  };
  EXPECT_THROW(run_threads(small(Collective::all_reduce, 3), throws), DataError);
}

Row example() {
  Row row;
  row.backend = "host";
  row.ranks = 4;
  row.bytes = 4'000'000;
  row.count = 1'000'000;
  row.time_us = 1000;
  return row;
}

TEST(Row, BandwidthsFollowNcclTests) {
  Row row = example();
  EXPECT_DOUBLE_EQ(algorithm_bandwidth(row), 4);
  EXPECT_DOUBLE_EQ(bus_bandwidth(row), 6);
  for (const auto& [collective, bandwidth] : {std::pair{Collective::all_gather, 3.0},
                                              {Collective::reduce_scatter, 3.0},
                                              {Collective::broadcast, 4.0}}) {
    row.collective = collective;
    EXPECT_DOUBLE_EQ(bus_bandwidth(row), bandwidth);
  }
}

TEST(Row, TextsHoldWhatWasMeasuredAndSayWhatWasNot) {
  Row row = example();
  EXPECT_THAT(table_line(row), HasSubstr("N/A"));
  auto json = nlohmann::json::parse(json_line(row));
  EXPECT_EQ(json, nlohmann::json::parse(R"({
    "op": "all_reduce", "backend": "host", "ranks": 4, "started_as": "processes",
    "memory": "group", "dtype": "float32", "redop": "sum", "bytes": 4000000, "count": 1000000,
    "time_us": 1000, "best_us": 0, "repeats": 0, "algbw": 4, "busbw": 6, "wrong": null,
    "probe_ns": null})"));
  row.wrong = 12345;
  row.probe_ns = 36.5;
  row.memory = Memory::own;
  json = nlohmann::json::parse(json_line(row));
  EXPECT_EQ(json["wrong"], 12345);
  EXPECT_EQ(json["probe_ns"], 36.5);
  EXPECT_EQ(json["memory"], "private");
  EXPECT_THAT(table_line(row), HasSubstr("12345"));
  row.collective = Collective::broadcast;
  EXPECT_THAT(table_line(row), HasSubstr("none"));
}

TEST(Settings, GiveSizesUpToTheLargestAndElementsOfOnePart) {
  Settings settings;
  settings.min_bytes = 1000;
  settings.max_bytes = 100000;
  settings.factor = 10;
  EXPECT_THAT(sizes(settings), ElementsAre(1000, 10000, 100000));
  settings.max_bytes = 99999;
  EXPECT_THAT(sizes(settings), ElementsAre(1000, 10000));
  settings.max_bytes = 1000;
  EXPECT_THAT(sizes(settings), ElementsAre(1000));
  settings.max_bytes = std::numeric_limits<std::size_t>::max();
  settings.factor = 1u << 31;
  EXPECT_EQ(sizes(settings).size(), 2u);
  settings = {};
  settings.ranks = 4;
  EXPECT_EQ(part_count(settings, 1024), 256u);
  settings.collective = Collective::all_gather;
  EXPECT_EQ(part_count(settings, 1024), 64u);
  settings.collective = Collective::reduce_scatter;
  settings.dtype = DType::f64;
  EXPECT_EQ(part_count(settings, 1024), 32u);
  EXPECT_EQ(part_count(settings, 1), 1u);
}

std::vector<float> filled(const Pattern& pattern, std::size_t count, std::size_t start) {
  std::vector<float> values(count);
  pattern.fill(reinterpret_cast<std::byte*>(values.data()), count, start);
  return values;
}

std::int64_t wrong(const Pattern& pattern, const std::vector<float>& values, std::size_t start) {
  return pattern.count_wrong(reinterpret_cast<const std::byte*>(values.data()), values.size(),
                             start);
}

TEST(Pattern, CountsEachWrongElementOnce) {
  const Pattern pattern(DType::f32);
  auto values = filled(pattern, 10000, 17);
  EXPECT_EQ(wrong(pattern, values, 17), 0);
  for (const std::size_t place : {0, 4095, 9999}) values[place] += 1;
  EXPECT_EQ(wrong(pattern, values, 17), 3);
  EXPECT_GT(wrong(pattern, values, 18), 9000);
  auto negated = filled(pattern, 10, 0);
  negated[3] = -negated[3];
  EXPECT_EQ(wrong(pattern, negated, 0), 1) << "-0 is another element, too";
}

TEST(Pattern, RanksThatMeetStartApart) {
  for (std::uint64_t turn = 0; turn < 1000; ++turn) {
    for (int rank = 1; rank < 8; ++rank) {
      EXPECT_NE(pattern_start(rank, turn), pattern_start(0, turn));
    }
    EXPECT_NE(pattern_start(0, turn), pattern_start(0, turn + 1));
  }
}

}  // namespace
}  // namespace lockstep::bench
