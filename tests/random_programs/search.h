#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tests/random_programs/run.h"

namespace lockstep::random_programs {

struct Failure {
  Source source;
  std::string what;
  std::size_t number = 0;  ///< programs compared so far, this one among them
};

/// Runs programs, each on as many ranks as it asks for; those of the same number of ranks share
/// worlds. Tells of each that fails as soon as it has, and ends after so many. Returns how many.
std::size_t run_all(const std::vector<Source>& sources, const std::vector<Category>& without,
                    const Ranks& ranks, std::size_t most_failures,
                    const std::function<void(const Failure&)>& tell);

/// The failing program without the operations that it fails without: any other that is left out
/// makes it illegal, or right.
Source shrink(const Source& failing, const std::vector<Category>& without,
              const std::function<bool(const Source&)>& fails);

}  // namespace lockstep::random_programs
