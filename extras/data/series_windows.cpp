#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/operation_error.h"
#include "core/text.h"
#include "extras/data/select_rows.h"
#include "lockstep/datasets.h"

namespace lockstep::inline v0_2 {

namespace {

std::string text_of(const at::Tensor& rows) {
  return rows.defined() ? detail::concat(rows.sizes(), " of ", rows.dtype()) : "undefined";
}

/// The tensors of all series as one.
/// Throws: InvalidArgument if one has other rows than the first, or not as many as its data.
at::Tensor join_rows(const std::vector<torch::data::Example<>>& series,
                     at::Tensor torch::data::Example<>::*member, const char* name) {
  std::vector<at::Tensor> all;
  for (const auto& one : series) {
    const at::Tensor& rows = all.emplace_back(one.*member);
    if (!rows.defined() || rows.dim() < 1 || rows.size(0) != one.data.size(0) ||
        rows.dtype() != all[0].dtype() || rows.sizes().slice(1) != all[0].sizes().slice(1))
      detail::throw_invalid("SeriesWindows", "got ", name, ' ', text_of(rows), " in series ",
                            all.size() - 1, ", expected as many rows as of data ",
                            text_of(one.data), ", and rows as in series 0: ", text_of(all[0]));
  }
  return all.size() == 1 ? all[0] : at::cat(all);
}

/// Successive rows from each start.
/// Shapes: starts [B]; [B, count, …].
at::Tensor rows_from(const at::Tensor& rows, const at::Tensor& starts, std::int64_t count) {
  const at::Tensor wanted = starts.unsqueeze(1) + at::arange(count, at::kLong);
  return rows.index_select(0, wanted.flatten()).unflatten(0, wanted.sizes());
}

}  // namespace

SeriesWindows::SeriesWindows(std::vector<torch::data::Example<>> series,
                             SeriesWindowOptions options)
    : series_(std::move(series)), options_(options) {
  const auto [length, horizon, stride, target_length] = options;
  if (series_.empty() || std::min(length, stride) < 1 || std::min(horizon, target_length) < 0)
    detail::throw_invalid("SeriesWindows", "got ", series_.size(), " series, length ", length,
                          ", horizon ", horizon, ", stride ", stride, ", target_length ",
                          target_length, ", expected at least 1, 1, 0, 1 and 0");
  rows_ = join_rows(series_, &torch::data::Example<>::data, "data");
  targets_ = join_rows(series_, &torch::data::Example<>::target, "target");
  const std::int64_t reach = length - 1 + horizon + std::max<std::int64_t>(1, target_length);
  std::vector<at::Tensor> starts;
  std::int64_t first = 0;
  for (auto& one : series_) {
    const std::int64_t rows = one.data.size(0);
    starts.push_back(
        at::arange(first, first + std::max<std::int64_t>(0, rows - reach + 1), stride, at::kLong));
    one = {rows_.narrow(0, first, rows), targets_.narrow(0, first, rows)};
    first += rows;
  }
  starts_ = at::cat(starts);
  target_starts_ = starts_ + (length - 1 + horizon);
}

std::pair<SeriesWindows, SeriesWindows> SeriesWindows::split(double fraction) const {
  if (!(fraction >= 0 && fraction <= 1))
    detail::throw_invalid("SeriesWindows", "got fraction ", fraction, ", expected 0 to 1");
  std::vector<torch::data::Example<>> before;
  std::vector<torch::data::Example<>> after;
  for (const auto& [data, target] : series_) {
    const auto end = static_cast<std::int64_t>(fraction * static_cast<double>(data.size(0)));
    before.emplace_back(data.slice(0, 0, end), target.slice(0, 0, end));
    after.emplace_back(data.slice(0, end), target.slice(0, end));
  }
  return {SeriesWindows(std::move(before), options_), SeriesWindows(std::move(after), options_)};
}

torch::data::Example<> SeriesWindows::get_batch(c10::ArrayRef<std::size_t> indices) {
  const auto [starts, target_starts] =
      detail::select_rows(starts_, target_starts_, indices, "SeriesWindows");
  return {rows_from(rows_, starts, options_.length),
          options_.target_length > 0 ? rows_from(targets_, target_starts, options_.target_length)
                                     : targets_.index_select(0, target_starts)};
}

std::optional<std::size_t> SeriesWindows::size() const {
  return static_cast<std::size_t>(starts_.size(0));
}

}  // namespace lockstep
