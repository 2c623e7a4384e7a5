#include "comm/mpi/mpi.h"

#include <algorithm>
#include <array>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <vector>

#include "comm/control/joining.h"
#include "comm/cost/cost.h"
#include "comm/messages/message_communicator.h"
#include "comm/messages/message_rank_context.h"
#include "comm/mpi/mpi_transport.h"
#include "core/text.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::mpi {

using messages::MessageCommunicator;
using messages::MessageRankContext;

// Note [How long a piece is]
// MPI sends a message up to its eager limit at once (over TCP 64 KiB, including its header). For a
// longer message it first sends a request to the receiver. Between hosts, the request and its reply
// queue behind all bytes in transit, and the link is idle meanwhile. At 1 Gbit/s between two
// simulated hosts, 25 MiB took 269 ms in pieces of 64 KiB or more, and 219 ms in pieces of 60 KiB.
// The link alone takes 210 ms. An all_gather of two ranks that sent whole parts used one direction
// of the link after the other if a rank was late: 64 MiB took 557 ms instead of 280 ms.
// Within a host nothing queues, and each message has a cost: four ranks took 20 to 50 % longer with
// such short pieces. If a member is late, MPI buffers the eager messages to it: up to a slice in a
// ring.

messages::Pieces MpiTransport::pieces(int hosts) const {
  return hosts > 1 ? messages::Pieces{.bytes = 60 << 10, .window = 8, .of_parts = true}
                   : messages::Pieces{.bytes = 512 << 10, .window = 4};
}

void MpiTransport::expect_usable_thread() const {
  if (Library::ended()) {
    throw InvalidArgument(detail::concat("mpi: rank ", rank(),
                                         " is used after the program's MPI_Finalize; call "
                                         "MPI_Finalize after the last use of its groups"));
  }
  if (Library::admits_this_thread()) return;
  throw InvalidArgument(detail::concat("mpi: rank ", rank(),
                                       " is used outside the main thread; the program initialised "
                                       "MPI with MPI_THREAD_FUNNELED"));
}

bool by_thread(const messages::Options& options) {
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

namespace {

/// Rank 0's offer to the others, as raw bytes.
struct Message {
  std::array<char, 512> refusal{};  ///< why rank 0 does not listen; empty if it does
  control::Offer offer{};
};

std::vector<control::Member> connect_members(MessageCommunicator& world,
                                             const control::Settings& settings) {
  std::optional<control::Gathering> gathering;
  Message message;
  if (world.rank() == 0) {
    try {
      message.offer = gathering.emplace(settings).offer();
    } catch (const CommError& error) {
      control::set_text(message.refusal, error.what());  // other ranks wait for the offer
    }
  }
  world.broadcast_from_rank_0(std::as_writable_bytes(std::span(&message, 1)));
  if (const auto why = control::text_of(message.refusal); !why.empty()) throw CommError(why);
  if (gathering) return gathering->wait();
  std::vector<control::Member> rank_0;
  rank_0.push_back(control::join(message.offer, settings));
  return rank_0;
}

/// Establishes the control connections of a world on several hosts, by which ranks detect failures
/// of other hosts. Every rank calls it once.
/// Throws: CommError and TimeoutError, on every rank, if a rank cannot connect.
void connect_hosts(MessageCommunicator& world) {
  auto& context = world.context();
  auto settings = control_settings(context.options(), world.rank(), world.size());
  settings.on_wait = [&world] { world.make_progress(); };
  try {
    context.watch(connect_members(world, settings), settings.host);
  } catch (const CommError& error) {
    context.end_by(detail::failure_of(error));
    throw;
  }
}

}  // namespace

std::shared_ptr<Communicator> create(const messages::Options& options) {
  const bool with_thread = by_thread(options);
  auto network = std::make_unique<MpiTransport>();
  if (options.expected_size > 0 && options.expected_size != network->size()) {
    throw BackendUnavailable(detail::concat(
        "mpi: the launcher started ", detail::plural(options.expected_size, "rank"),
        ", but this program's MPI (", version(), ") knows of ", network->size(),
        ": launcher and program use different MPIs; start it with the mpirun of the program's"));
  }
  const auto context = std::make_shared<MessageRankContext>(options, std::move(network));
  Library::at_end([context] { context->leave_and_wait(); });
  const auto world = MessageCommunicator::world(context);
  if (std::ranges::max(world->hosts()) > 0) connect_hosts(*world);
  messages::begin(*world, options.records, with_thread);
  return world;
}

}  // namespace lockstep::mpi
