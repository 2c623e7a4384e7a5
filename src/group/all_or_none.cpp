#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <exception>
#include <string>
#include <string_view>

#include "comm/communicator.h"
#include "core/text.h"
#include "lockstep/error.h"
#include "lockstep/group.h"

namespace lockstep::inline v0_2 {

namespace {

/// A rank's message to the others: the lengths of the texts of its error, and its other fields.
struct Notice {
  std::int64_t length = 0;  ///< of the text; 0 if there is no error
  std::int64_t operation_length = 0;
  std::int64_t cause_length = 0;  ///< 0 if the error is the cause
  std::int32_t rank = -1;         ///< Error::rank()
  ErrorKind kind = ErrorKind::general;
  ErrorKind cause_kind = ErrorKind::general;

  std::int64_t total() const { return length + operation_length + cause_length; }
};

/// What one rank has to say of its error.
struct Report {
  Notice notice;
  std::string texts;  ///< the text, the operation and the cause, without separators

  Report() = default;
  explicit Report(const std::exception& error) {
    texts = *error.what() != '\0' ? error.what() : "unknown error";
    notice.length = static_cast<std::int64_t>(texts.size());
    const auto* known = dynamic_cast<const Error*>(&error);
    if (known == nullptr) return;
    notice.operation_length = static_cast<std::int64_t>(known->operation().size());
    notice.cause_length = static_cast<std::int64_t>(known->cause().size());
    notice.rank = known->rank();
    notice.kind = known->kind();
    notice.cause_kind = known->cause_kind();
    texts += known->operation() + known->cause();
  }
};

/// Repeats the error of another rank. text begins with that rank.
[[noreturn]] void raise(ErrorKind kind, const std::string& text, const ErrorDetails& details) {
  if (kind == ErrorKind::invalid_argument) throw InvalidArgument(text, details);
  if (kind == ErrorKind::checkpoint) throw CheckpointError(text, details);
  if (kind == ErrorKind::data) throw DataError(text, details);
  throw Error(text, details);
}

at::Tensor bytes_of(std::int64_t count) { return at::empty({count}, at::kByte); }

}  // namespace

void all_or_none(const Group& group, const std::function<void()>& fn) {
  std::exception_ptr error;
  Report own;
  try {
    fn();
  } catch (const std::exception& caught) {
    error = std::current_exception();
    own = Report(caught);
  }

  const at::Tensor mine = bytes_of(sizeof(Notice));
  std::memcpy(mine.mutable_data_ptr(), &own.notice, sizeof(Notice));
  const at::Tensor all = bytes_of(group.size() * static_cast<std::int64_t>(sizeof(Notice)));
  group.all_gather(all, mine).wait();
  const auto* const begin = static_cast<const Notice*>(all.const_data_ptr());
  const auto* const end = begin + group.size();
  const auto* const first =
      std::find_if(begin, end, [](const Notice& notice) { return notice.length > 0; });
  if (first == end) return;

  const int rank = static_cast<int>(first - begin);
  const at::Tensor letters = bytes_of(first->total());
  if (rank == group.rank()) {
    std::memcpy(letters.mutable_data_ptr(), own.texts.data(), own.texts.size());
  }
  group.broadcast(letters, rank).wait();
  if (error) std::rethrow_exception(error);
  const std::string_view texts(static_cast<const char*>(letters.const_data_ptr()),
                               static_cast<std::size_t>(first->total()));
  const auto text = texts.substr(0, static_cast<std::size_t>(first->length));
  const auto operation =
      texts.substr(text.size(), static_cast<std::size_t>(first->operation_length));
  const auto cause = texts.substr(text.size() + operation.size());
  // An error that itself repeats another names the rank and the cause of that one.
  const bool repeats = !cause.empty() && first->rank >= 0;
  raise(first->kind, detail::concat("rank ", rank, ": ", text),
        {.rank = repeats ? first->rank : group.communicator().world_rank(rank),
         .operation = std::string(operation),
         .cause = std::string(cause.empty() ? text : cause),
         .cause_kind = first->cause_kind});
}

}  // namespace lockstep
