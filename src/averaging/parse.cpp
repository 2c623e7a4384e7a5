#include "averaging/parse.h"

#include "averaging/fields.h"

namespace lockstep::inline v0_2::averaging {
namespace {

using detail::checked;
using detail::Fields;

Options fp32(Fields& fields) { return checked(AllReduce{}, fields); }

Options fp16(Fields& fields) {
  Fp16 recipe;
  recipe.clip = fields.real("clip", recipe.clip);
  recipe.predivide = fields.flag("predivide", recipe.predivide);
  return checked(recipe, fields);
}

Options bf16(Fields& fields) { return checked(Bf16{}, fields); }

Options top_k(Fields& fields) {
  TopK recipe;
  recipe.ratio = fields.real("ratio", recipe.ratio);
  recipe.error_feedback = fields.flag("feedback", recipe.error_feedback);
  recipe.ramp = fields.whole("ramp", recipe.ramp);
  return checked(recipe, fields);
}

Options threshold(Fields& fields) {
  Threshold recipe;
  recipe.value = fields.real("value", recipe.value);
  recipe.error_feedback = fields.flag("feedback", recipe.error_feedback);
  return checked(recipe, fields);
}

Options int8(Fields& fields) {
  Int8 recipe;
  recipe.error_feedback = fields.flag("feedback", recipe.error_feedback);
  return checked(recipe, fields);
}

struct Named {
  std::string_view name;
  std::string_view alias;  ///< SINGA's name
  Options (*parse)(Fields&);
};

constexpr Named strategies[] = {{"fp32", "plain", fp32},
                                {"fp16", "half", fp16},
                                {"bf16", "", bf16},
                                {"topk", "sparseTopK", top_k},
                                {"threshold", "sparseThreshold", threshold},
                                {"int8", "", int8}};

}  // namespace

std::optional<Options> parse(std::string_view name, std::string_view options) {
  for (const auto& known : strategies) {
    if (name.empty() || (name != known.name && name != known.alias)) continue;
    Fields fields(name, options);
    return known.parse(fields);
  }
  return std::nullopt;
}

std::string names() {
  std::string all;
  for (const auto& known : strategies) {
    if (!all.empty()) all += ", ";
    all += known.name;
  }
  return all;
}

}  // namespace lockstep::averaging
