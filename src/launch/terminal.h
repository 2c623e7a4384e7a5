#pragma once

#include "launch/pipe.h"

namespace lockstep::inline v0_2::launch {

/// A terminal of the launcher's making: what a rank writes to slave is read unchanged from master.
/// A program asks whether its output is a terminal to decide on progress bars and buffering; rank
/// 0's answer should be the launcher's.
struct Terminal {
  Descriptor master;
  Descriptor slave;
};

/// Empty descriptors when the machine has no terminals to give: a pipe does then.
Terminal make_terminal(int model);

/// Gives the terminal the size of model, a descriptor of the real one.
void copy_window_size(int model, int master) noexcept;

}  // namespace lockstep::launch
