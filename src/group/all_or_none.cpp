#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <exception>
#include <numeric>
#include <stdexcept>
#include <string>
#include <string_view>

#include "comm/communicator.h"
#include "core/failure.h"
#include "core/text.h"
#include "group/gather_texts.h"
#include "lockstep/error.h"
#include "lockstep/group.h"

namespace lockstep::inline v0_2 {

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

  ErrorMessage() = default;
  explicit ErrorMessage(const std::exception& error) {
    texts = detail::without_backtrace(error.what());
    header.length = static_cast<std::int64_t>(texts.size());
    const auto* known = dynamic_cast<const Error*>(&error);
    if (known == nullptr) return;
    header.operation_length = static_cast<std::int64_t>(known->operation().size());
    header.cause_length = static_cast<std::int64_t>(known->cause().size());
    header.rank = known->rank();
    header.kind = known->kind();
    header.cause_kind = known->cause_kind();
    texts += known->operation() + known->cause();
  }
};

/// Throws the error of another rank. text begins with that rank.
[[noreturn]] void raise(ErrorKind kind, const std::string& text, const ErrorDetails& details) {
  if (kind == ErrorKind::invalid_argument) throw InvalidArgument(text, details);
  if (kind == ErrorKind::checkpoint) throw CheckpointError(text, details);
  if (kind == ErrorKind::data) throw DataError(text, details);
  throw Error(text, details);
}

at::Tensor byte_tensor(std::int64_t count) { return at::empty({count}, at::kByte); }

}  // namespace

void all_or_none(const Group& group, const std::function<void()>& fn) {
  std::exception_ptr error;
  ErrorMessage own;
  try {
    fn();
  } catch (const std::exception& caught) {
    error = std::current_exception();
    own = ErrorMessage(caught);
  } catch (...) {
    error = std::current_exception();
    own = ErrorMessage(std::runtime_error(detail::current_error_text()));
  }

  auto& communicator = group.host().communicator();
  auto source = communicator.source();
  if (source == Source()) source.content = Source::Content::all_or_none;
  const SourceScope scope(communicator, source);
  const at::Tensor own_header = byte_tensor(sizeof(ErrorHeader));
  std::memcpy(own_header.mutable_data_ptr(), &own.header, sizeof(ErrorHeader));
  const at::Tensor all = byte_tensor(group.size() * static_cast<std::int64_t>(sizeof(ErrorHeader)));
  group.host().all_gather(all, own_header).wait();
  const auto* const begin = static_cast<const ErrorHeader*>(all.const_data_ptr());
  const auto* const end = begin + group.size();
  const auto* const first =
      std::find_if(begin, end, [](const ErrorHeader& header) { return header.length > 0; });
  if (first == end) return;

  const int rank = static_cast<int>(first - begin);
  const at::Tensor error_bytes = byte_tensor(first->total());
  if (rank == group.rank()) {
    std::memcpy(error_bytes.mutable_data_ptr(), own.texts.data(), own.texts.size());
  }
  group.host().broadcast(error_bytes, rank).wait();
  if (error) std::rethrow_exception(error);
  const std::string_view texts(static_cast<const char*>(error_bytes.const_data_ptr()),
                               static_cast<std::size_t>(first->total()));
  const auto text = texts.substr(0, static_cast<std::size_t>(first->length));
  const auto operation =
      texts.substr(text.size(), static_cast<std::size_t>(first->operation_length));
  const auto cause = texts.substr(text.size() + operation.size());
  // If the error itself repeats another one, the rank and the cause are those of the first.
  const bool repeats = !cause.empty() && first->rank >= 0;
  raise(first->kind, detail::concat("rank ", rank, ": ", text),
        {.rank = repeats ? first->rank : group.communicator().world_rank(rank),
         .operation = std::string(operation),
         .cause = std::string(cause.empty() ? text : cause),
         .cause_kind = first->cause_kind});
}

std::vector<std::string> detail::gather(const std::string& own, const Group& group) {
  const at::Tensor length = at::empty({1}, at::kLong);
  length.fill_(static_cast<std::int64_t>(own.size()));
  const at::Tensor lengths = at::empty({group.size()}, at::kLong);
  group.host().all_gather(lengths, length).wait();
  const auto* const counts = lengths.const_data_ptr<std::int64_t>();
  const std::vector<std::size_t> sizes(counts, counts + group.size());

  const at::Tensor input = byte_tensor(static_cast<std::int64_t>(own.size()));
  std::ranges::copy(own, static_cast<char*>(input.mutable_data_ptr()));
  const at::Tensor all =
      byte_tensor(std::accumulate(counts, counts + group.size(), std::int64_t{0}));
  group.host().all_gather(all, input, sizes).wait();
  std::vector<std::string> texts;
  const auto* next = static_cast<const char*>(all.const_data_ptr());
  for (const std::size_t size : sizes) {
    texts.emplace_back(next, size);
    next += size;
  }
  return texts;
}

double Group::mean(double value) const {
  auto& communicator = host().communicator();
  const SourceScope scope(communicator, {.content = Source::Content::condition});
  communicator.all_reduce(&value, 1, DType::f64, ReduceOp::sum).wait();
  return value / size();
}

bool Group::any(bool condition) const {
  auto& communicator = host().communicator();
  const SourceScope scope(communicator, {.content = Source::Content::condition});
  communicator.all_reduce(&condition, 1, DType::boolean, ReduceOp::max).wait();
  return condition;
}

}  // namespace lockstep
