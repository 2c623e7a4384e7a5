#include "lockstep/comm/control/settings.h"

namespace lockstep::control {

std::string_view lockstep_version() { return LOCKSTEP_VERSION; }

}  // namespace lockstep::control
