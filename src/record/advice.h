#pragma once

#include <string>
#include <vector>

#include "record/page/page.h"
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

/// As the template of pages takes it.
std::vector<Values> values_of(const std::vector<Advice>& advice);

}  // namespace lockstep::record
