#pragma once

#include <cstddef>
#include <memory>
#include <string_view>

namespace lockstep::inline v0_2::detail {

/// Memory of this process alone, 64-byte aligned and zeroed, for a backend whose ranks share none.
/// Throws: CommError naming the backend when the machine has not that much.
std::shared_ptr<std::byte> take_private_memory(std::size_t bytes, std::string_view backend);

}  // namespace lockstep::detail
