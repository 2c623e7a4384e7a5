#include "core/nccl_version.h"

#include "core/text.h"

namespace lockstep::inline v0_2::detail {

std::string nccl_version_text(int version) {
  const int major = version < 10000 ? 1000 : 10000;
  return concat(version / major, '.', version % major / 100, '.', version % 100);
}

}  // namespace lockstep::detail
