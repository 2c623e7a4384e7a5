#pragma once

#include <cstddef>
#include <span>

namespace lockstep::kernels {

/// So many bytes and more are copied past the caches.
inline constexpr std::size_t copied_past_caches = 4 << 20;

/// Copies bytes between places that do not overlap; nothing where both are the same. A long run is
/// written past the caches: they could not hold it, and lines written whole need not be read first.
/// What was copied is there for whoever sees what is stored with release order afterwards.
void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes);

/// The same to several places, by reading once. One of them may be where the bytes are.
void copy_bytes(std::span<std::byte* const> to, const std::byte* from, std::size_t bytes);

}  // namespace lockstep::kernels
