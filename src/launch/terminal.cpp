#include "launch/terminal.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <termios.h>

#include <array>
#include <cstdlib>

namespace lockstep::inline v0_2::launch {

Terminal make_terminal(int model) {
  Descriptor master(posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC));
  std::array<char, 64> name{};
  if (!master || grantpt(master.get()) != 0 || unlockpt(master.get()) != 0 ||
      ptsname_r(master.get(), name.data(), name.size()) != 0) {
    return {};
  }
  Descriptor slave(open(name.data(), O_RDWR | O_NOCTTY | O_CLOEXEC));
  termios settings{};
  if (!slave || tcgetattr(slave.get(), &settings) != 0) return {};
  // Raw: the real terminal at the end of the way does what terminals do to line ends.
  cfmakeraw(&settings);
  tcsetattr(slave.get(), TCSANOW, &settings);
  copy_window_size(model, master.get());
  return {std::move(master), std::move(slave)};
}

void copy_window_size(int model, int master) noexcept {
  winsize size{};
  if (ioctl(model, TIOCGWINSZ, &size) == 0) ioctl(master, TIOCSWINSZ, &size);
}

}  // namespace lockstep::launch
