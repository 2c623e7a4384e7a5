#include "record/scalar.h"

#include <bit>
#include <nlohmann/json.hpp>
#include <string_view>

#include "record/checksum.h"
#include "record/protobuf.h"

namespace lockstep::inline v0_2::record {
namespace {

constexpr auto castagnoli = crc_table(0x82f63b78);

}  // namespace

std::uint32_t crc32c(std::string_view bytes) { return crc_of(castagnoli, bytes); }

// A TensorBoard file is a row of framed messages: length, its checksum, message, its checksum. The
// messages are protocol buffers of a few fields, which are written here by hand.

namespace {

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
