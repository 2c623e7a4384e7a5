#include "record/scalar.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <nlohmann/json.hpp>

#include "record/run.h"

namespace lockstep::inline v0_2::record {
namespace {

TEST(Crc32c, IsThatOfTheStandard) {
  // RFC 3720, B.4, and the check value of the catalogue of CRC algorithms.
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aaU);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43U);
  std::string up;
  for (char byte = 0; byte < 32; ++byte) up += byte;
  EXPECT_EQ(crc32c(up), 0x46dd794eU);
  EXPECT_EQ(crc32c("123456789"), 0xe3069283U);
  EXPECT_EQ(crc32c(""), 0U);
}

TEST(EventRecord, IsAFramedProtocolBuffer) {
  const std::vector<Scalar> scalars{{"ab", 1.5}, {"c", -2}};
  const auto record = event_record(1.0, 300, scalars);
  const std::string wall_time("\x09\x00\x00\x00\x00\x00\x00\xf0\x3f", 9);
  const std::string step("\x10\xac\x02", 3);
  const std::string first(
      "\x0a\x09\x0a\x02"
      "ab"
      "\x15\x00\x00\xc0\x3f",
      11);
  const std::string second(
      "\x0a\x08\x0a\x01"
      "c"
      "\x15\x00\x00\x00\xc0",
      10);
  const auto message = wall_time + step + "\x2a\x15" + first + second;
  ASSERT_EQ(record.size(), message.size() + 16);
  EXPECT_EQ(record.substr(0, 8),
            std::string(1, static_cast<char>(message.size())) + std::string(7, '\0'));
  EXPECT_EQ(record.substr(12, message.size()), message);
  const auto checksum = [](const std::string& bytes) {
    const auto sum = crc32c(bytes);
    const std::uint32_t masked = ((sum >> 15) | (sum << 17)) + 0xa282ead8U;
    std::string text;
    for (const int shift : {0, 8, 16, 24}) text += static_cast<char>(masked >> shift);
    return text;
  };
  EXPECT_EQ(record.substr(8, 4), checksum(record.substr(0, 8)));
  EXPECT_EQ(record.substr(12 + message.size()), checksum(message));
}

TEST(MetricsLine, IsOneObject) {
  const auto line = metrics_line(7, 0.25, std::vector<Scalar>{{"loss", 0.1}, {"a \"b\"", NAN}});
  EXPECT_EQ(line, "{\"step\":7,\"elapsed\":0.25,\"loss\":0.1,\"a \\\"b\\\"\":null}\n");
  EXPECT_TRUE(nlohmann::json::accept(metrics_line(0, 0, std::vector<Scalar>{{"\xff", 1}})));
}

TEST(IntervalLine, IsReadAsItWasWritten) {
  const Interval interval{
      .step = 20,
      .steps = 10,
      .elapsed = 3.5,
      .ranks = {{.seconds = 2, .waiting = 0.5, .working = 0.25, .bytes = 1ULL << 40},
                {.seconds = 2.5, .dense_bytes = 9}}};
  const auto read = parse_interval(interval_line(interval));
  ASSERT_TRUE(read);
  EXPECT_EQ(read->step, 20);
  EXPECT_EQ(read->steps, 10);
  EXPECT_EQ(read->elapsed, 3.5);
  ASSERT_EQ(read->ranks.size(), 2U);
  EXPECT_EQ(read->ranks[0].bytes, 1ULL << 40);
  EXPECT_EQ(read->ranks[0].computing(), 1.25);
  EXPECT_EQ(read->ranks[1].dense_bytes, 9U);
  for (const char* text : {"", "{", "[]", "{\"step\": 1}", "{\"step\": \"x\", \"steps\": 1}"}) {
    EXPECT_FALSE(parse_interval(text)) << text;
  }
}

}  // namespace
}  // namespace lockstep::record
