#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "lockstep/averages.h"

namespace lockstep::inline v0_2::averaging {

/// The options of one of the strategies of averages.h.
using Options = std::variant<AllReduce, Fp16, Bf16, TopK, Threshold, Int8>;

/// Parses the options of the strategy with this name: "topk" and "0.01,feedback=off". nullopt for
/// another name.
/// Throws: InvalidArgument for options that are unknown or out of range.
std::optional<Options> parse(std::string_view name, std::string_view options);

/// The names, for error texts: "fp32, fp16, …".
std::string names();

}  // namespace lockstep::averaging
