#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace lockstep::inline v0_2::record {

/// CRC-32C, of Castagnoli's polynomial. Source: RFC 3720, appendix B.4.
std::uint32_t crc32c(std::string_view bytes);

/// One value of a run that is worth a curve.
struct Scalar {
  std::string name;
  double value = 0;
};

/// Whether a name of metrics.jsonl says where its line stands: step, elapsed or wall_time.
bool is_position(std::string_view name);

/// One line of metrics.jsonl: {"step": …, "elapsed": …, "wall_time": …, "<name>": …}. NaN and
/// infinities are null. Units: elapsed in seconds that the log covers so far, wall_time in seconds
/// since 1970.
std::string metrics_line(std::int64_t step, double elapsed, std::span<const Scalar> scalars,
                         std::optional<double> wall_time = {});

/// One record of a TensorBoard file with the same. Units: wall_time in seconds since 1970.
/// Source: TensorFlow's event.proto and summary.proto.
std::string event_record(double wall_time, std::int64_t step, std::span<const Scalar> scalars);
/// The record that a TensorBoard file begins with.
std::string first_event_record(double wall_time);
/// Tells TensorBoard that the run was started again: it drops what earlier records hold of this
/// step and later ones. Source: TensorFlow's SessionLog.START.
std::string restart_event_record(double wall_time, std::int64_t step);

}  // namespace lockstep::record
