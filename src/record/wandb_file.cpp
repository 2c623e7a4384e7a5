#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "lockstep/version.h"
#include "record/checksum.h"
#include "record/export.h"
#include "record/protobuf.h"

// A file of an offline run of Weights & Biases is a log as LevelDB's: blocks of 32 KiB, in which a
// record has one or several fragments. A record is a protocol buffer.
// Source: "LevelDB log format"; wandb_internal.proto of Weights & Biases' client.

namespace lockstep::inline v0_2::record {
namespace {

constexpr std::uint64_t message(int field) { return static_cast<std::uint64_t>(field) << 3 | 2; }
constexpr std::uint64_t integer(int field) { return static_cast<std::uint64_t>(field) << 3; }

/// Of the messages that are written.
enum WandbField : int {
  record_number = 1,
  record_history = 2,
  record_run = 17,
  record_exit = 18,
  record_header = 21,
  header_version = 1,
  version_producer = 1,
  version_least_consumer = 2,
  run_id = 1,
  run_project = 3,
  run_config = 4,
  run_name = 8,
  run_start_time = 17,
  time_seconds = 1,
  config_update = 1,
  config_key = 1,
  config_value = 16,
  history_item = 1,
  history_step = 2,
  item_nested_key = 2,
  item_value = 16,
  step_number = 1
};

/// Appends records, each in fragments that end with their block.
class WandbLog {
 public:
  WandbLog() {
    out_ = ":W&B";
    put<std::uint16_t>(out_, 0xbee1);
    put<std::uint8_t>(out_, 0);  // version
  }

  void add(WandbField field, const std::string& content) {
    std::string record;
    put_varint(record, integer(record_number));
    put_varint(record, ++records_);
    put_text(record, message(field), content);
    append(record);
  }
  std::string text() && { return std::move(out_); }

 private:
  enum Fragment : char { full = 1, first = 2, middle = 3, last = 4 };
  static constexpr std::size_t block = 32768;
  static constexpr std::size_t head = 7;
  static constexpr auto table = crc_table(0xedb88320);

  void append(std::string_view rest) {
    for (bool begins = true;; begins = false) {
      std::size_t room = block - out_.size() % block;
      if (room < head) {
        out_.append(room, '\0');
        room = block;
      }
      const auto part = rest.substr(0, room - head);
      rest.remove_prefix(part.size());
      const Fragment kind = begins ? (rest.empty() ? full : first) : (rest.empty() ? last : middle);
      std::string checked(1, kind);
      checked += part;
      put<std::uint32_t>(out_, crc_of(table, checked));
      put<std::uint16_t>(out_, static_cast<std::uint16_t>(part.size()));
      out_ += checked;
      if (rest.empty()) return;
    }
  }

  std::string out_;
  std::uint64_t records_ = 0;
};

std::string json_of(const nlohmann::json& value) {
  return value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

/// Valid UTF-8, as strings of protocol buffers are.
std::string utf8(const std::string& text) {
  return nlohmann::json::parse(json_of(text)).get<std::string>();
}

/// As the client writes what JSON has no word for.
std::string number_of(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return json_of(value);
}

std::string item(const std::string& name, const std::string& value) {
  std::string text;
  put_text(text, message(item_nested_key), name);
  put_text(text, message(item_value), value);
  return text;
}

std::string run_record(const Run& run, const std::string& id, double start) {
  std::string config;
  for (const auto& [name, value] : run.environment) {
    std::string update;
    put_text(update, message(config_key), utf8(name));
    put_text(update, message(config_value), json_of(value));
    put_text(config, message(config_update), update);
  }
  std::string time;
  put_varint(time, integer(time_seconds));
  put_varint(time, static_cast<std::uint64_t>(std::clamp(start, 0.0, 1e11)));
  std::string text;
  put_text(text, message(run_id), id);
  put_text(text, message(run_project), "lockstep");
  put_text(text, message(run_config), config);
  put_text(text, message(run_name), utf8(run.name));
  put_text(text, message(run_start_time), time);
  return text;
}

std::string history_record(const ExportTable& table, std::int64_t step, const ExportRow& row) {
  std::string text;
  const auto add = [&](const std::string& name, const std::string& value) {
    put_text(text, message(history_item), item(name, value));
  };
  for (const auto& [column, value] : row.values) {
    add(utf8(table.columns[column]), number_of(value));
  }
  if (row.moment.wall_time) add("_timestamp", number_of(*row.moment.wall_time));
  add("_runtime", number_of(row.moment.elapsed));
  add("_step", std::to_string(step));
  std::string number;
  put_varint(number, integer(step_number));
  put_varint(number, static_cast<std::uint64_t>(step));
  put_text(text, message(history_step), number);
  return text;
}

}  // namespace

std::string wandb_file(const Run& run, const ExportTable& table, const std::string& id) {
  WandbLog log;
  std::string version_info;
  put_text(version_info, message(version_producer), "lockstep " + std::string(version()));
  put_text(version_info, message(version_least_consumer), "0.13.0");
  std::string header;
  put_text(header, message(header_version), version_info);
  log.add(record_header, header);
  double start = 0;
  for (const auto& [step, moment] : run.moments) {
    if (!moment.wall_time || !std::isfinite(*moment.wall_time)) continue;
    start = *moment.wall_time - moment.elapsed;
    break;
  }
  log.add(record_run, run_record(run, id, start));
  for (const auto& [step, row] : table.rows) {
    if (step >= 0) log.add(record_history, history_record(table, step, row));
  }
  log.add(record_exit, "");
  return std::move(log).text();
}

}  // namespace lockstep::record
