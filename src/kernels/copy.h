#pragma once

#include <cstddef>
#include <span>

namespace lockstep::inline v0_2::kernels {

/// So many bytes and more are copied past the caches.
inline constexpr std::size_t copied_past_caches = 4 << 20;

/// Copies bytes between ranges that are equal or do not overlap; equal ranges need no copy. A long
/// copy bypasses the caches with whole-line stores. Threads that acquire a later release store of
/// the caller see the copied bytes.
void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes);

/// The same to several places, by reading once. One of them may be where the bytes are.
void copy_bytes(std::span<std::byte* const> to, const std::byte* from, std::size_t bytes);

}  // namespace lockstep::kernels
