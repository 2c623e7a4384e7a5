#include "averaging/average.h"

#include "core/error_record.h"
#include "core/text.h"

namespace lockstep::inline v0_2::averaging {

using detail::concat;

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
