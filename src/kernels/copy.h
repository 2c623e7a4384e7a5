#pragma once

#include <cstddef>
#include <span>

namespace lockstep::inline v0_2::kernels {

/// Copies of at least this many bytes use non-temporal stores, which bypass the caches.
inline constexpr std::size_t copied_past_caches = 4 << 20;

/// Copies bytes between ranges that are equal or do not overlap. Long copies use non-temporal
/// stores. Threads that acquire a later release store of the caller see the copied bytes.
void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes);

/// The same for a part of a copy of `whole` bytes, which decide whether the copy is long.
void copy_part(std::byte* to, const std::byte* from, std::size_t bytes, std::size_t whole);

/// The same to several destinations, with one read. A destination may be the source.
void copy_bytes(std::span<std::byte* const> to, const std::byte* from, std::size_t bytes);

}  // namespace lockstep::kernels
