#include "core/host_name.h"

#include <unistd.h>

#include <array>

namespace lockstep::inline v0_2::detail {

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown";
}

}  // namespace lockstep::detail
