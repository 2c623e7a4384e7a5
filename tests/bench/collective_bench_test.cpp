#include "bench/collective_bench.h"

#include <gtest/gtest.h>

#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <vector>

#include "bench/ranks.h"
#include "bench/session.h"
#include "lockstep/error.h"

namespace lockstep::bench {
namespace {

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

std::vector<Row> rows_of(const Settings& settings) {
  std::vector<Row> rows;
  run_threads(settings, [&](Transport& transport) {
    measure_all(transport, settings, [&](const Row& row) { rows.push_back(row); });
  });
  return rows;
}

TEST(CollectiveBench, FindsNothingWrongWithTheHostBackend) {
  for (const Collective collective : {Collective::all_reduce, Collective::broadcast,
                                      Collective::all_gather, Collective::reduce_scatter}) {
    for (const int ranks : {1, 2, 3}) {
      const auto rows = rows_of(small(collective, ranks));
      ASSERT_EQ(rows.size(), 4u);  // two sizes in two kinds of memory
      for (const Row& row : rows) {
        EXPECT_EQ(row.wrong, 0) << table_line(row);
        EXPECT_GT(row.time_us, 0);
        EXPECT_EQ(row.repeats, 2u);
        EXPECT_EQ(row.ranks, ranks);
      }
    }
  }
}

TEST(CollectiveBench, ChecksEveryDtypeAndReduction) {
  for (const DType dtype : all_dtypes) {
    for (const ReduceOp op : all_reduce_ops) {
      if (!has_reduction(dtype, op)) continue;
      Settings settings = small(Collective::all_reduce, 3);
      settings.dtype = dtype;
      settings.op = op;
      settings.memories = {Memory::group};
      settings.max_bytes = settings.min_bytes;
      for (const Row& row : rows_of(settings)) EXPECT_EQ(row.wrong, 0) << table_line(row);
    }
  }
}

TEST(CollectiveBench, ChecksFloatsThatTravelAsHalves) {
  for (const DType wire : {DType::f16, DType::bf16}) {
    Settings settings = small(Collective::all_reduce, 3);
    settings.wire = wire;
    for (const Row& row : rows_of(settings)) {
      EXPECT_EQ(row.wrong, 0) << table_line(row);
      EXPECT_EQ(row.wire, wire);
    }
  }
}

TEST(CollectiveBench, MeasuresABarrierOnce) {
  const auto rows = rows_of(small(Collective::barrier, 2));
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0].bytes, 0u);
  EXPECT_GT(rows[0].time_us, 0);
}

/// A backend that spoils one element of every all_reduce of floats.
class Spoiling final : public Transport {
 public:
  explicit Spoiling(Transport& inner) : inner_(inner) {}

  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  std::string_view backend() const override { return "spoiling"; }
  std::shared_ptr<std::byte> allocate(Memory memory, std::size_t bytes) override {
    return inner_.allocate(memory, bytes);
  }
  void all_reduce(void* data, std::size_t count, ReduceOp op, const Wire& wire) override {
    inner_.all_reduce(data, count, op, wire);
  }
  void all_reduce(void* data, std::size_t count, DType dtype, ReduceOp op) override {
    inner_.all_reduce(data, count, dtype, op);
    if (dtype == DType::f32) *static_cast<std::byte*>(data) ^= std::byte{1};
  }
  void broadcast(void* data, std::size_t count, DType dtype, int root) override {
    inner_.broadcast(data, count, dtype, root);
  }
  void all_gather(const void* input, void* output, std::size_t count, DType dtype) override {
    inner_.all_gather(input, output, count, dtype);
  }
  void reduce_scatter(const void* input, void* output, std::size_t count, DType dtype,
                      ReduceOp op) override {
    inner_.reduce_scatter(input, output, count, dtype, op);
  }
  void barrier() override { inner_.barrier(); }

 private:
  Transport& inner_;
};

TEST(CollectiveBench, CountsWrongElementsOfAllRanks) {
  Settings settings = small(Collective::all_reduce, 2);
  settings.max_bytes = settings.min_bytes;
  std::vector<Row> rows;
  run_threads(settings, [&](Transport& transport) {
    Spoiling spoiling(transport);
    measure_all(spoiling, settings, [&](const Row& row) { rows.push_back(row); });
  });
  ASSERT_EQ(rows.size(), 2u);
  for (const Row& row : rows) {
    const std::int64_t exchanges = 2 * 64;  // repetitions, each a round of 64 small buffers
    EXPECT_EQ(row.wrong, 2 * exchanges);
  }
}

TEST(CollectiveBench, WritesATableOrAnObjectALine) {
  Settings settings = small(Collective::all_reduce, 2);
  const auto text_of = [&] {
    std::ostringstream out;
    run_threads(settings, [&](Transport& transport) { run_session(transport, settings, out); });
    return out.str();
  };
  const std::string table = text_of();
  EXPECT_NE(table.find("busbw"), std::string::npos);
  EXPECT_NE(table.find("2 ranks as threads"), std::string::npos);
  EXPECT_NE(table.find("# wrong elements: 0"), std::string::npos);
  settings.json = true;
  std::istringstream lines(text_of());
  int objects = 0;
  for (std::string line; std::getline(lines, line); ++objects) {
    EXPECT_EQ(line.front(), '{');
    EXPECT_EQ(line.back(), '}');
  }
  EXPECT_EQ(objects, 4);
}

TEST(RunThreads, RaisesWhatTheFirstFailingRankThrew) {
  Settings settings = small(Collective::all_reduce, 3);
  EXPECT_THROW(run_threads(settings,
                           [](Transport& transport) {
                             if (transport.rank() == 1) throw DataError("rank 1's own");
                             transport.barrier();
                           }),
               DataError);
}

}  // namespace
}  // namespace lockstep::bench
