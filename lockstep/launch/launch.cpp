#include "lockstep/launch/launch.h"

#include "lockstep/launch/supervisor.h"

namespace lockstep::launch {

int run(const Plan& plan) {
  open_standard_descriptors();
  return Supervisor(plan).run();
}

}  // namespace lockstep::launch
