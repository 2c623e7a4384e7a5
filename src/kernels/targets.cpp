#include "kernels/targets.h"

#include <hwy/targets.h>

namespace lockstep::inline v0_2::kernels {

std::vector<std::string> cpu_targets() {
  std::vector<std::string> names;
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    names.emplace_back(hwy::TargetName(target));
  }
  return names;
}

}  // namespace lockstep::kernels
