#include "record/scalar.h"

#include <array>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string_view>

namespace lockstep::inline v0_2::record {
namespace {

/// The table of CRC-32C, whose polynomial is 0x1edc6f41: its bits in reverse.
constexpr auto crc_table = [] {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t byte = 0; byte < table.size(); ++byte) {
    std::uint32_t rest = byte;
    for (int bit = 0; bit < 8; ++bit) rest = rest >> 1 ^ ((rest & 1) != 0 ? 0x82f63b78 : 0);
    table[byte] = rest;
  }
  return table;
}();

}  // namespace

std::uint32_t crc32c(std::string_view bytes) {
  std::uint32_t sum = ~std::uint32_t{0};
  for (const char byte : bytes)
    sum = crc_table[(sum ^ static_cast<unsigned char>(byte)) & 255] ^ sum >> 8;
  return ~sum;
}

// A TensorBoard file is a row of framed messages: length, its checksum, message, its checksum. The
// messages are protocol buffers of a few fields, which are written here by hand. Their numbers are
// little-endian.

namespace {

static_assert(std::endian::native == std::endian::little, "fields are written as they lie here");

template <class Number>
void put(std::string& out, Number number) {
  char bytes[sizeof number];
  std::memcpy(bytes, &number, sizeof number);
  out.append(bytes, sizeof number);
}

void put_varint(std::string& out, std::uint64_t number) {
  for (; number >= 128; number >>= 7) out += static_cast<char>(number | 128);
  out += static_cast<char>(number);
}

/// A field of text, or of a message. key: field number << 3 | wire type 2.
void put_text(std::string& out, std::uint64_t key, std::string_view text) {
  put_varint(out, key);
  put_varint(out, text.size());
  out += text;
}

/// Field numbers and wire types of what is written.
enum Key : char {
  event_wall_time = 1 << 3 | 1,
  event_step = 2 << 3 | 0,
  event_file_version = 3 << 3 | 2,
  event_summary = 5 << 3 | 2,
  event_session_log = 7 << 3 | 2,
  session_log_status = 1 << 3 | 0,
  summary_value = 1 << 3 | 2,
  value_tag = 1 << 3 | 2,
  value_simple_value = 2 << 3 | 5
};

/// Source: TensorFlow's record_writer: a checksum of what holds checksums should look unlike one.
std::uint32_t masked_crc(std::string_view bytes) {
  return std::rotr(crc32c(bytes), 15) + 0xa282ead8;
}

std::string framed(std::string_view message) {
  std::string out;
  put<std::uint64_t>(out, message.size());
  put(out, masked_crc(out));
  out += message;
  put(out, masked_crc(message));
  return out;
}

std::string event_at(double wall_time) {
  std::string event(1, event_wall_time);
  put(event, wall_time);
  return event;
}

}  // namespace

std::string first_event_record(double wall_time) {
  auto event = event_at(wall_time);
  put_text(event, event_file_version, "brain.Event:2");
  return framed(event);
}

std::string restart_event_record(double wall_time, std::int64_t step) {
  constexpr char start = 1;
  auto event = event_at(wall_time);
  event += event_step;
  put_varint(event, static_cast<std::uint64_t>(step));
  put_text(event, event_session_log, std::string{session_log_status, start});
  return framed(event);
}

std::string event_record(double wall_time, std::int64_t step, std::span<const Scalar> scalars) {
  auto event = event_at(wall_time);
  event += event_step;
  put_varint(event, static_cast<std::uint64_t>(step));
  std::string summary;
  for (const auto& [name, number] : scalars) {
    std::string value;
    put_text(value, value_tag, name);
    value += value_simple_value;
    put(value, static_cast<float>(number));
    put_text(summary, summary_value, value);
  }
  put_text(event, event_summary, summary);
  return framed(event);
}

bool is_position(std::string_view name) {
  return name == "step" || name == "elapsed" || name == "wall_time";
}

std::string metrics_line(std::int64_t step, double elapsed, std::span<const Scalar> scalars,
                         std::optional<double> wall_time) {
  nlohmann::ordered_json line = {{"step", step}, {"elapsed", elapsed}};
  if (wall_time) line["wall_time"] = *wall_time;
  for (const auto& [name, value] : scalars) line[name] = value;
  // A name may hold bytes that are not UTF-8. `replace` keeps the line valid JSON.
  return line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + '\n';
}

}  // namespace lockstep::record
