#include "averaging/average.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/error_record.h"
#include "core/text.h"

namespace lockstep::inline v0_2::averaging {

using detail::concat;

namespace {

Issue issue_of(const Buffer& input, const Buffer& output) {
  return {.owner = std::make_shared<std::pair<Buffer, Buffer>>(input, output)};
}

}  // namespace

Buffer::Buffer(Communicator& group, std::size_t bytes)
    : memory_(group.allocate(std::max<std::size_t>(bytes, 1))), bytes_(bytes) {}

void Buffer::fill_with_zeros() const {
  if (bytes_ > 0) std::memset(memory_.get(), 0, bytes_);
}

Work all_gather(Communicator& group, const Buffer& output, const Buffer& input) {
  return group.all_gather(input.data(), output.data(), input.bytes(), DType::u8,
                          issue_of(input, output));
}

Work all_gather(Communicator& group, const Buffer& output, const Buffer& input,
                std::span<const std::size_t> bytes) {
  return group.all_gather(input.data(), output.data(), bytes, DType::u8, issue_of(input, output));
}

Work all_to_all(Communicator& group, const Buffer& output, const Buffer& input) {
  return group.all_to_all(input.data(), output.data(),
                          input.bytes() / static_cast<std::size_t>(group.size()), DType::u8,
                          issue_of(input, output));
}

Average::Average(bool error_feedback, const Elements& elements, const Arrays& arrays,
                 Communicator& group)
    : arrays_(arrays) {
  if (!error_feedback) return;
  residual_ = Buffer(group, elements.count * size_of(elements.dtype));
  residual_.fill_with_zeros();
}

Issue issue_of(const Elements& elements) {
  return {.shape = {static_cast<std::int64_t>(elements.count)}, .owner = elements.owner};
}

InvalidArgument not_finite_error(const std::string& text, int rank, const Communicator& group) {
  const InvalidArgument error(text, {.rank = group.world_rank(rank),
                                     .cause = rank == group.rank() ? std::string() : text,
                                     .cause_kind = ErrorKind::invalid_argument});
  // A program that prints the error and ends may not call record_error().
  auto record = detail::record_of(error);
  record.raised = true;
  detail::leave_error_record(record);
  return error;
}

void refuse_not_finite(std::string_view strategy, const std::string& name, int rank,
                       const Communicator& group) {
  throw not_finite_error(concat("strategy ", strategy, ": the gradient of ", name, " on rank ",
                                rank, " has NaN or Inf, expected finite numbers"),
                         rank, group);
}

void expect_dtype(std::string_view strategy, const Elements& elements, const Arrays& arrays,
                  std::initializer_list<DType> supported) {
  std::string expected;
  for (const auto dtype : supported) {
    if (dtype == elements.dtype) return;
    expected += concat(expected.empty() ? "" : " or ", name(dtype));
  }
  throw InvalidArgument(concat("strategy ", strategy, ": got ", name(elements.dtype),
                               " elements of ", arrays.name_at(0), ", expected ", expected, ": ",
                               arrays.remedy));
}

}  // namespace lockstep::averaging
