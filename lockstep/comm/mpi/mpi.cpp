#include "lockstep/comm/mpi/mpi.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "lockstep/comm/hosts.h"
#include "lockstep/comm/mpi/connect.h"
#include "lockstep/comm/mpi/endpoint.h"
#include "lockstep/comm/mpi/library.h"
#include "lockstep/comm/mpi/mpi_communicator.h"
#include "lockstep/core/error.h"
#include "lockstep/core/log.h"
#include "lockstep/core/text.h"

namespace lockstep::mpi {

std::string available() { return {}; }

std::string version() { return Library::version(); }

std::shared_ptr<Communicator> create(const Options& options) {
  Library::join();
  const auto endpoint = std::make_shared<Endpoint>(options);
  const int size = endpoint->size();
  if (options.expected_size > 0 && options.expected_size != size) {
    throw BackendUnavailable(detail::concat(
        "mpi: the launcher started ", options.expected_size, " ranks, but this program's MPI (",
        version(), ") knows of ", size,
        ": launcher and program use different MPIs; start it with the mpirun of the program's"));
  }
  Library::at_end([endpoint] { endpoint->part(); });
  std::vector<int> members(static_cast<std::size_t>(size));
  std::iota(members.begin(), members.end(), 0);
  auto communicator = std::make_shared<MpiCommunicator>(endpoint, members, endpoint->rank(), 0);
  communicator->join();
  communicator->meet_hosts(options.host.empty() ? detail::this_host() : options.host);
  if (std::ranges::max(communicator->hosts()) > 0) connect_hosts(*communicator);
  log::debug(detail::concat("rank ", endpoint->rank(), " of ", size, " joined its world"));
  return communicator;
}

}  // namespace lockstep::mpi
