#include "comm/mpi/mpi.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "comm/cost/placement.h"
#include "comm/flight/flight_recorder.h"
#include "comm/mpi/library.h"
#include "comm/mpi/mpi_communicator.h"
#include "comm/mpi/mpi_rank_context.h"
#include "core/log.h"
#include "core/plural.h"
#include "core/text.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::mpi {

bool by_thread(const Options& options) {
  Library::join(options.timeout);
  const auto progress = options.progress;
  if (progress == ProgressMode::wait) return false;
  const auto why_not = Library::why_no_thread();
  if (!why_not.empty() && progress == ProgressMode::thread) {
    throw BackendUnavailable(
        detail::concat("mpi: got progress thread, but ", why_not,
                       "; call MPI_Init_thread with that, or leave LOCKSTEP_PROGRESS unset"));
  }
  return why_not.empty();
}

void start_thread(Communicator& world) {
  // A single rank has no communication to overlap.
  if (world.size() > 1) dynamic_cast<MpiCommunicator&>(world).context().start_progress_thread();
}

void record_operations(Communicator& world) {
  dynamic_cast<MpiCommunicator&>(world).context().set_recorder(
      detail::FlightRecorder::create(world));
}

int last_group(const Communicator& world) {
  auto& context = dynamic_cast<const MpiCommunicator&>(world).context();
  const auto lock = context.lock();
  return context.last_group();
}

std::shared_ptr<Communicator> new_group(Communicator& parent, const std::vector<int>& members,
                                        int number) {
  return dynamic_cast<MpiCommunicator&>(parent).part(members, number);
}

std::shared_ptr<Communicator> create(const Options& options) {
  const bool with_thread = by_thread(options);
  const auto context = std::make_shared<MpiRankContext>(options);
  const int size = context->size();
  if (options.expected_size > 0 && options.expected_size != size) {
    throw BackendUnavailable(detail::concat(
        "mpi: the launcher started ", detail::plural(options.expected_size, "rank"),
        ", but this program's MPI (", version(), ") knows of ", size,
        ": launcher and program use different MPIs; start it with the mpirun of the program's"));
  }
  Library::at_end([context] { context->leave_and_wait(); });
  std::vector<int> members(static_cast<std::size_t>(size));
  std::iota(members.begin(), members.end(), 0);
  auto communicator = std::make_shared<MpiCommunicator>(context, members, context->rank(), 0);
  communicator->join();
  communicator->exchange_join_records(options.host.empty() ? detail::this_host() : options.host);
  if (std::ranges::max(communicator->hosts()) > 0) connect_hosts(*communicator);
  if (options.records) record_operations(*communicator);
  if (with_thread) start_thread(*communicator);
  log::debug(detail::concat("rank ", context->rank(), " of ", size, " joined its world; ",
                            with_thread ? "a thread makes" : "ranks that wait make", " progress"));
  return communicator;
}

}  // namespace lockstep::mpi
