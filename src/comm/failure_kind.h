#pragma once

namespace lockstep::inline v0_2::detail {

/// Why a world ended. The values are part of the layout of a host world's memory.
enum class FailureKind {
  error,
  timeout,
  left,  ///< a rank left the world while another waited for it
  mismatch,
  abandoned,  ///< an exception left the scope of an operation
  elsewhere   ///< met outside of this host's memory, such as over the network
};

}  // namespace lockstep::detail
