#include "core/error_record.h"

#include <algorithm>
#include <cstddef>
#include <string_view>

#include "lockstep/error.h"

namespace lockstep::inline v0_2::detail {
namespace {

/// How the backtrace of a c10::Error begins.
constexpr std::string_view backtrace_begin = "\nException raised from ";

}  // namespace

std::string_view without_backtrace(std::string_view text) noexcept {
  return text.substr(0, text.find(backtrace_begin));
}

ErrorRecord record_of(const std::exception& error) {
  ErrorRecord record{.text = std::string(without_backtrace(error.what()))};
  if (const auto* known = dynamic_cast<const Error*>(&error)) {
    record.kind = known->kind();
    record.rank = known->rank();
    record.repeats = !known->cause().empty();
    record.operation = known->operation();
  }
  return record;
}

void ErrorSlot::write(const ErrorRecord& record) noexcept {
  length_ = 0;
  kind_ = record.kind;
  rank_ = record.rank;
  repeats_ = record.repeats;
  raised_ = record.raised;
  operation_length_ =
      static_cast<std::uint32_t>(record.operation.copy(operation_.data(), operation_.size()));
  length_ = static_cast<std::uint32_t>(record.text.copy(text_.data(), text_.size()));
}

std::optional<ErrorRecord> ErrorSlot::read() const {
  if (length_ == 0) return std::nullopt;
  // The memory may be that of a program with an error.
  const auto length = std::min<std::size_t>(length_, text_.size());
  const auto operation_length = std::min<std::size_t>(operation_length_, operation_.size());
  return ErrorRecord{.kind = kind_,
                     .rank = rank_,
                     .repeats = repeats_,
                     .raised = raised_,
                     .text = {text_.data(), length},
                     .operation = {operation_.data(), operation_length}};
}

}  // namespace lockstep::detail
