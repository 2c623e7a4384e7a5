#pragma once

#include <cstddef>
#include <memory>
#include <string_view>

namespace lockstep::inline v0_2::detail {

/// Private memory of this process, 64-byte aligned and zeroed, for a backend whose ranks do not
/// share memory.
/// Throws: CommError naming the backend if memory is short.
std::shared_ptr<std::byte> take_private_memory(std::size_t bytes, std::string_view backend);

}  // namespace lockstep::detail
