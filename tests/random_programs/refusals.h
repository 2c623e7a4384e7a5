#pragma once

#include <cstddef>
#include <string>

#include "core/text.h"
#include "tests/random_programs/known.h"
#include "tests/random_programs/program.h"

namespace lockstep::random_programs {

/// Whether every rank must refuse it, and is known to.
inline bool allow_refusal(const Known& known, const Refuse& op) {
  using What = Refuse::What;
  const auto& now = known.unit(op.unit);
  if (!known.between_steps(op.unit)) return false;
  // The model's zero_grad() after it leaves the parts.
  if (known.spec(op.unit).in_parts && is_about_a_backward(op.what)) return false;
  const bool notices_backward =
      !known.is_replaced(op.unit) && known.reaches(op.unit, ~0U) && known.may_run(op.unit);
  switch (op.what) {
    case What::second_weight:
    case What::negative_weight:
      return known.is_fp32(op.unit) && notices_backward;
    case What::wrapped_twice:
      return !known.is_replaced(op.unit);
    case What::thawed:
      return !now.trainable[static_cast<std::size_t>(op.number)];
    case What::other_dtype:
      return known.may_convert(op.unit);
    case What::not_finite:
      if (known.starts_from_zero(op.unit) && now.holds_mean) return false;
      return known.spec(op.unit).check_finite && notices_backward;
    case What::other_layout:
    case What::opaque:
    case What::listed_twice:
    case What::in_place:
      return true;
  }
  return false;
}

/// A part of its message.
inline std::string said_of(const Known& known, const Refuse& op) {
  using enum Refuse::What;
  using lockstep::detail::concat;
  switch (op.what) {
    case negative_weight:
      return concat("got -1 on rank ", op.number, ", expected 0 or more");
    case second_weight:
      return concat("got 1 and then 2 on rank ", op.number, " before one exchange");
    case wrapped_twice:
      return known.reaches(op.unit, ~0U) ? "another wrapper already synchronises it"
                                         : "the model has no parameter that requires a gradient";
    case thawed:
      return "was frozen and now requires a gradient";
    case other_dtype:
      return "was converted to ";
    case opaque:
      return "visit_tensors";
    case listed_twice:
      return "twice, as #";
    case in_place:
      return "detach()";
    case not_finite:
      return concat("on rank ", op.number, " has NaN or Inf");
    case other_layout:
      return "is in the model, but not in the file";
  }
  return "";
}

}  // namespace lockstep::random_programs
