#pragma once

#include <exception>

namespace lockstep {

/// Leaves an error where the launcher looks for it, so that its last words name the root cause:
/// under torchrun as JSON in TORCHELASTIC_ERROR_FILE, elsewhere nowhere. For main(), with what it
/// catches; what nobody catches is left there by itself from init() on. The first counts.
/// Source: torch/distributed/elastic/multiprocessing/errors/error_handler.py
void record_error(const std::exception& error) noexcept;

namespace detail {

/// Records what nobody catches, from here on.
void record_uncaught_errors();

}  // namespace detail

}  // namespace lockstep
