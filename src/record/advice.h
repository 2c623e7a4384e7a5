#pragma once

#include <string>
#include <vector>

#include "record/run.h"

namespace lockstep::inline v0_2::record {

/// A number of a run that stands out.
struct Advice {
  std::string finding;  ///< with the figures
  std::string remedy;
};

std::vector<Advice> advice_of(const Run& run);

/// The numbers that stand out in a comparison of two runs.
std::vector<Advice> advice_of(const Run& first, const Run& second);

/// A list; nothing where there is no advice.
std::string advice_html(const std::vector<Advice>& advice);

}  // namespace lockstep::record
