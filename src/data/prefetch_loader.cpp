#include "lockstep/prefetch_loader.h"

#include <c10/util/Exception.h>

#include <exception>
#include <string>

#include "core/text.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::detail {

PrefetchOptions checked(PrefetchOptions options) {
  if (options.batch_size == 0)
    throw InvalidArgument("PrefetchLoader: got a batch size of 0, expected at least 1");
  return options;
}

namespace {

/// Throws what is being handled, named.
[[noreturn]] void throw_as_data_error(const std::string& where) {
  try {
    throw;
  } catch (const c10::Error& error) {
    std::throw_with_nested(DataError(concat(where, ": ", error.what_without_backtrace())));
  } catch (const std::exception& error) {
    std::throw_with_nested(DataError(concat(where, ": ", error.what())));
  } catch (...) {
    std::throw_with_nested(DataError(concat(where, ": an exception that is no std::exception")));
  }
}

}  // namespace

void rethrow_named(std::size_t batch, c10::ArrayRef<std::size_t> indices,
                   const std::function<void(std::size_t index)>& read_alone) {
  for (const std::size_t index : indices) {
    try {
      if (indices.size() > 1)
        read_alone(index);
      else
        throw;
    } catch (...) {
      throw_as_data_error(concat("batch ", batch, ", index ", index));
    }
  }
  throw_as_data_error(concat("batch ", batch, ", of ", indices.size(), " samples"));
}

}  // namespace lockstep::detail
