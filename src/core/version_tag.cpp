#include "core/version_tag.h"

#include <string>

#include "core/text.h"
#include "lockstep/error.h"
#include "lockstep/version.h"

namespace lockstep::inline v0_2::detail {

VersionTag version_tag() {
  VersionTag tag{};
  version().copy(tag.data(), tag.size() - 1);
  return tag;
}

void expect_version(std::string_view where, std::size_t rank, const VersionTag& found,
                    const VersionTag& of_rank_0) {
  if (found == of_rank_0) return;
  throw CommError(concat(where, ": rank ", rank, " runs Lockstep ", found.data(), ", expected ",
                         of_rank_0.data(), " as on rank 0"),
                  {.rank = static_cast<int>(rank)});
}

}  // namespace lockstep::detail

namespace lockstep::inline v0_2 {

std::string_view version() {
  static const std::string text = detail::concat(
      LOCKSTEP_VERSION_MAJOR, '.', LOCKSTEP_VERSION_MINOR, '.', LOCKSTEP_VERSION_PATCH);
  return text;
}

}  // namespace lockstep
