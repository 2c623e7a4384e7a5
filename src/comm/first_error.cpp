#include "comm/first_error.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

#include "comm/agreement.h"
#include "core/failure.h"
#include "core/text.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::detail {

namespace {

/// The message that all ranks exchange: the fields of a rank's error, and the lengths of its texts.
struct ErrorHeader {
  std::int64_t length = 0;  ///< of what(); 0 if there is no error
  std::int64_t operation_length = 0;
  std::int64_t cause_length = 0;  ///< 0 if the error is the cause
  std::int32_t rank = -1;         ///< Error::rank()
  ErrorKind kind = ErrorKind::general;
  ErrorKind cause_kind = ErrorKind::general;

  std::int64_t total() const { return length + operation_length + cause_length; }
};

/// The error of a rank in the form that is sent.
struct ErrorMessage {
  ErrorHeader header;
  std::string texts;  ///< what(), operation() and cause(), concatenated
};

/// error: null for none.
ErrorMessage message_of(const std::exception* error) {
  ErrorMessage message;
  if (error == nullptr) return message;
  auto& [header, texts] = message;
  texts = without_backtrace(error->what());
  header.length = static_cast<std::int64_t>(texts.size());
  const auto* known = dynamic_cast<const Error*>(error);
  if (known == nullptr) return message;
  header.operation_length = static_cast<std::int64_t>(known->operation().size());
  header.cause_length = static_cast<std::int64_t>(known->cause().size());
  header.rank = known->rank();
  header.kind = known->kind();
  header.cause_kind = known->cause_kind();
  texts += known->operation() + known->cause();
  return message;
}

/// Throws the error of another rank. text begins with that rank.
[[noreturn]] void raise(ErrorKind kind, const std::string& text, const ErrorDetails& details) {
  if (kind == ErrorKind::invalid_argument) throw InvalidArgument(text, details);
  if (kind == ErrorKind::checkpoint) throw CheckpointError(text, details);
  if (kind == ErrorKind::data) throw DataError(text, details);
  throw Error(text, details);
}

}  // namespace

void throw_first_error(Communicator& group, const std::exception* own) {
  const ErrorMessage message = message_of(own);
  auto source = group.source();
  if (source == Source()) source.content = Source::Content::all_or_none;
  const SourceScope scope(group, source);
  const auto all = gather_values(message.header, group);
  const auto first =
      std::ranges::find_if(all, [](const ErrorHeader& header) { return header.length > 0; });
  if (first == all.end()) return;

  const auto rank = static_cast<int>(first - all.begin());
  std::string received = message.texts;
  received.resize(static_cast<std::size_t>(first->total()));
  group.broadcast(received.data(), received.size(), DType::u8, rank).wait();
  const std::string_view texts(received);
  const auto text = texts.substr(0, static_cast<std::size_t>(first->length));
  const auto operation =
      texts.substr(text.size(), static_cast<std::size_t>(first->operation_length));
  const auto cause = texts.substr(text.size() + operation.size());
  const int at_fault = group.world_rank(rank);
  // If the error itself repeats another one, the rank and the cause are those of the first.
  const bool repeats = !cause.empty() && first->rank >= 0;
  raise(first->kind, concat("rank ", at_fault, ": ", text),
        {.rank = repeats ? first->rank : at_fault,
         .operation = std::string(operation),
         .cause = std::string(cause.empty() ? text : cause),
         .cause_kind = first->cause_kind});
}

}  // namespace lockstep::detail
