#pragma once

#include <cstdint>
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

/// One line of metrics.jsonl: {"step": …, "elapsed": …, "<name>": …}. NaN and infinities are null.
/// Units: elapsed in seconds since the log was opened, also in a resumed run.
std::string metrics_line(std::int64_t step, double elapsed, std::span<const Scalar> scalars);

/// One record of a TensorBoard file with the same. Units: wall_time in seconds since 1970.
/// Source: TensorFlow's event.proto and summary.proto.
std::string event_record(double wall_time, std::int64_t step, std::span<const Scalar> scalars);
/// The record that a TensorBoard file begins with.
std::string first_event_record(double wall_time);

}  // namespace lockstep::record
