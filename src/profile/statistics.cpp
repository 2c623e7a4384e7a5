#include "lockstep/statistics.h"

#include <iomanip>

#include "core/text.h"

namespace lockstep::inline v0_2 {
namespace {

double milliseconds(std::chrono::nanoseconds time) {
  return std::chrono::duration<double, std::milli>(time).count();
}

}  // namespace

std::string to_text(std::span<const CollectiveStatistics> rows) {
  detail::TextStream out;
  out << std::fixed;
  const auto line = [&](std::string_view what, const CollectiveStatistics& row) {
    out << std::left << std::setw(28) << what << std::right << std::setw(9) << row.count
        << std::setw(11) << std::setprecision(2) << static_cast<double>(row.bytes) / 1e6
        << std::setw(13) << milliseconds(row.working) << std::setw(13) << milliseconds(row.waiting)
        << '\n';
  };
  out << std::left << std::setw(28) << "collective" << std::right << std::setw(9) << "count"
      << std::setw(11) << "MB" << std::setw(13) << "working ms" << std::setw(13) << "waiting ms"
      << '\n';
  CollectiveStatistics sum;
  CollectiveStatistics bucket_sum;
  for (const auto& row : rows) {
    std::string what(name(row.collective));
    if (row.bucket >= 0) what += " of bucket " + std::to_string(row.bucket);
    line(what, row);
    sum.count += row.count;
    sum.bytes += row.bytes;
    if (row.bucket >= 0) {
      bucket_sum.bytes += row.bytes;
      bucket_sum.dense_bytes += row.dense_bytes;
    }
    sum.working += row.working;
    sum.waiting += row.waiting;
    sum.communicating += row.communicating;
    sum.hidden += row.hidden;
  }
  line("all", sum);
  const auto dense = static_cast<double>(bucket_sum.dense_bytes);
  const auto sent = static_cast<double>(bucket_sum.bytes);
  if (dense > 0 && dense != sent) {
    out << "buckets of " << std::setprecision(2) << dense / 1e6 << " MB were sent as " << sent / 1e6
        << " MB: " << std::setprecision(1);
    if (dense > sent) {
      out << "compressed " << dense / sent << " times\n";
    } else {
      out << sent / dense << " times as much\n";
    }
  }
  if (sum.hidden.count() > 0) {
    out << std::setprecision(2) << "communication took " << milliseconds(sum.communicating)
        << " ms, of which " << milliseconds(sum.hidden)
        << " ms overlapped with other work: " << std::setprecision(0)
        << 100 * milliseconds(sum.hidden) / milliseconds(sum.communicating) << " %\n";
  }
  return out.str();
}

}  // namespace lockstep
