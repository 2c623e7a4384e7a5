#include "bench/row.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace lockstep::bench {
namespace {

using ::testing::HasSubstr;

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
  row.collective = Collective::all_gather;
  EXPECT_DOUBLE_EQ(bus_bandwidth(row), 3);
  row.collective = Collective::reduce_scatter;
  EXPECT_DOUBLE_EQ(bus_bandwidth(row), 3);
  row.collective = Collective::broadcast;
  EXPECT_DOUBLE_EQ(bus_bandwidth(row), 4);
}

TEST(Row, JsonHoldsWhatWasMeasuredAndNullWhatWasNot) {
  Row row = example();
  auto json = nlohmann::json::parse(json_line(row));
  EXPECT_EQ(json["op"], "all_reduce");
  EXPECT_EQ(json["backend"], "host");
  EXPECT_EQ(json["ranks"], 4);
  EXPECT_EQ(json["dtype"], "float32");
  EXPECT_EQ(json["bytes"], 4'000'000);
  EXPECT_EQ(json["time_us"], 1000);
  EXPECT_EQ(json["algbw"], 4);
  EXPECT_EQ(json["busbw"], 6);
  EXPECT_EQ(json["memory"], "group");
  EXPECT_EQ(json["started_as"], "processes");
  EXPECT_TRUE(json["wrong"].is_null());
  EXPECT_TRUE(json["probe_ns"].is_null());
  row.wrong = 3;
  row.probe_ns = 36.5;
  row.memory = Memory::own;
  json = nlohmann::json::parse(json_line(row));
  EXPECT_EQ(json["wrong"], 3);
  EXPECT_EQ(json["probe_ns"], 36.5);
  EXPECT_EQ(json["memory"], "private");
}

TEST(Row, TableShowsWrongElementsOrThatNobodyLooked) {
  Row row = example();
  EXPECT_THAT(table_line(row), HasSubstr("N/A"));
  row.wrong = 12345;
  EXPECT_THAT(table_line(row), HasSubstr("12345"));
  row.collective = Collective::broadcast;
  EXPECT_THAT(table_line(row), HasSubstr("none"));
}

}  // namespace
}  // namespace lockstep::bench
