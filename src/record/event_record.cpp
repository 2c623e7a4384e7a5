#include <bit>
#include <cstring>
#include <string_view>

#include "record/crc32c.h"
#include "record/scalar.h"

// A TensorBoard file is a row of framed messages: length, its checksum, message, its checksum. The
// messages are protocol buffers of a few fields, which are written here by hand.

namespace lockstep::inline v0_2::record {
namespace {

static_assert(std::endian::native == std::endian::little, "fields are written as they lie here");

/// Field numbers and wire types of what is written.
enum Key : char {
  event_wall_time = 1 << 3 | 1,
  event_step = 2 << 3 | 0,
  event_file_version = 3 << 3 | 2,
  event_summary = 5 << 3 | 2,
  summary_value = 1 << 3 | 2,
  value_tag = 1 << 3 | 2,
  value_simple_value = 2 << 3 | 5
};

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

void put_text(std::string& out, Key key, std::string_view text) {
  out += key;
  put_varint(out, text.size());
  out += text;
}

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

}  // namespace lockstep::record
