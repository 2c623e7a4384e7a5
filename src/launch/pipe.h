#pragma once

#include "core/descriptor.h"

namespace lockstep::inline v0_2::launch {

using detail::Descriptor;

/// The two ends of a pipe, both close-on-exec.
struct Pipe {
  Descriptor read;
  Descriptor write;
};

/// Throws: CommError when the process may open no more files.
Pipe make_pipe();

}  // namespace lockstep::launch
