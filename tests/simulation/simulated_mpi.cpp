// The two classes of src/comm/mpi that call MPI, Library and MpiTransport, over the simulated
// network. The linker takes these definitions instead of those of the library.
#include "tests/simulation/simulated_mpi.h"

#include <cstring>

#include "comm/mpi/mpi.h"
#include "comm/mpi/mpi_transport.h"
#include "core/text.h"
#include "lockstep/error.h"

namespace lockstep::testing {

void SimulatedMpiJob::add(SimulatedProcess& process) {
  ranks_.push_back(&process);
  process.mpi = std::make_shared<SimulatedMpi>(SimulatedMpi{.job = *this});
}

int SimulatedMpiJob::rank_of(const SimulatedProcess& process) const {
  return static_cast<int>(std::ranges::find(ranks_, &process) - ranks_.begin());
}

void SimulatedMpiJob::send(int from, int to, std::function<void(SimulatedMpi&)> deliver) {
  auto& pipe = pipes_[{from, to}];
  if (pipe == nullptr) {
    pipe = std::make_shared<Pipe>(kernel_.network(), process(from).host(), process(to).host());
  }
  pipe->send([&receiver = process(to), deliver = std::move(deliver)] {
    if (receiver.over()) return;
    ++receiver.news;
    deliver(*receiver.mpi);
  });
}

}  // namespace lockstep::testing

namespace lockstep::inline v0_2::mpi {

using testing::SimulatedKernel;
using testing::SimulatedMessage;
using testing::SimulatedMpi;

std::string available() { return {}; }
std::string version() { return "simulated"; }

void Library::join(std::chrono::milliseconds /*timeout*/) {}
bool Library::running() { return true; }
bool Library::ended() { return false; }
bool Library::admits_this_thread() { return true; }
std::string Library::why_no_thread() { return {}; }
void Library::at_end(std::function<void()> last_call) {
  SimulatedKernel::process().at_exit([call = std::move(last_call)](int exit_code) {
    if (exit_code == 0) call();
  });
}
void Library::abandon() {}

/// The pending messages of this rank.
struct MpiTransport::Requests {
  struct Send {
    std::uint64_t request;
    const std::byte* data;
    std::size_t bytes;
    int to;
    bool complete;  ///< the data were copied
    Done done;
  };
  struct Receive {
    std::byte* data;
    std::size_t bytes;  ///< of the buffer, then of the message
    int from;
    int tag;
    std::uint64_t request = 0;  ///< of this receive, once the sender was asked for the data
    bool complete = false;
    Done done = {};
  };

  SimulatedMpi& mpi = *SimulatedKernel::process().mpi;
  testing::SimulatedMpiJob& job = mpi.job;
  int rank = job.rank_of(SimulatedKernel::process());
  std::vector<Send> sends = {};
  std::vector<Receive> receives = {};

  /// MPI forbids a receive into memory of another pending message.
  template <class Pending>
  static void expect_separate(const Pending& pending, const std::byte* data, std::size_t bytes) {
    for (const auto& other : pending) {
      if (data < other.data + other.bytes && other.data < data + bytes) {
        throw CommError("mpi: a message is received into memory of another pending message");
      }
    }
  }
  void match(Receive& receive);
  void send_granted();
  void receive_data();
};

namespace {

std::vector<std::byte> copy_of(const std::byte* data, std::size_t bytes) {
  return {data, data + bytes};
}

}  // namespace

MpiTransport::MpiTransport() : requests_(std::make_unique<Requests>()) {
  auto& job = requests_->job;
  rank_ = requests_->rank;
  size_ = job.size();
  local_size_ = 0;
  for (int other = 0; other < size_; ++other) {
    if (job.process(other).host() == SimulatedKernel::process().host()) ++local_size_;
  }
  last_tag_ = 32767;
}

MpiTransport::~MpiTransport() = default;

void MpiTransport::stop() noexcept {
  requests_->sends.clear();
  requests_->receives.clear();
}

void MpiTransport::send(const std::byte* data, std::size_t bytes, int to, int tag, Done done) {
  auto& all = *requests_;
  SimulatedKernel::current()->enter();
  Requests::expect_separate(all.receives, data, bytes);
  const bool eager = bytes <= all.job.eager_bytes();
  const auto request = eager ? 0 : ++all.mpi.last_request;
  all.sends.push_back({.request = request,
                       .data = data,
                       .bytes = bytes,
                       .to = to,
                       .complete = eager,
                       .done = std::move(done)});
  SimulatedMessage message{.from = all.rank, .tag = tag, .bytes = bytes, .request = request};
  if (eager) message.data = copy_of(data, bytes);
  all.job.send(all.rank, to,
               [message](SimulatedMpi& receiver) { receiver.arrived.push_back(message); });
}

void MpiTransport::receive(std::byte* data, std::size_t bytes, int from, int tag, Done done) {
  SimulatedKernel::current()->enter();
  Requests::expect_separate(requests_->sends, data, bytes);
  Requests::expect_separate(requests_->receives, data, bytes);
  requests_->receives.push_back(
      {.data = data, .bytes = bytes, .from = from, .tag = tag, .done = std::move(done)});
}

void MpiTransport::Requests::match(Receive& receive) {
  const auto found = std::ranges::find_if(mpi.arrived, [&](const SimulatedMessage& message) {
    return message.tag == receive.tag && (receive.from == anyone || message.from == receive.from);
  });
  if (found == mpi.arrived.end()) return;
  const auto message = std::move(*found);
  mpi.arrived.erase(found);
  if (message.bytes > receive.bytes) {
    throw CommError(detail::concat("mpi: MPI_ERR_TRUNCATE: a message of ", message.bytes,
                                   " bytes for a buffer of ", receive.bytes));
  }
  receive.bytes = message.bytes;
  if (message.request == 0) {
    std::ranges::copy(message.data, receive.data);
    receive.complete = true;
    return;
  }
  receive.request = ++mpi.last_request;
  job.send(rank, message.from,
           [theirs = message.request, own = receive.request, to = rank](SimulatedMpi& sender) {
             sender.granted.push_back(theirs);
             sender.granted.push_back(own);
             sender.granted.push_back(static_cast<std::uint64_t>(to));
           });
}

void MpiTransport::Requests::send_granted() {
  for (std::size_t i = 0; i + 2 < mpi.granted.size(); i += 3) {
    const auto found = std::ranges::find(sends, mpi.granted[i], &Send::request);
    if (found == sends.end()) continue;
    job.send(rank, static_cast<int>(mpi.granted[i + 2]),
             [request = mpi.granted[i + 1], data = copy_of(found->data, found->bytes)](
                 SimulatedMpi& receiver) { receiver.data.emplace_back(request, data); });
    found->complete = true;
  }
  mpi.granted.clear();
}

void MpiTransport::Requests::receive_data() {
  for (const auto& [request, data] : std::exchange(mpi.data, {})) {
    const auto found = std::ranges::find(receives, request, &Receive::request);
    if (found == receives.end()) continue;
    std::ranges::copy(data, found->data);
    found->complete = true;
  }
}

bool MpiTransport::progress() {
  auto& kernel = *SimulatedKernel::current();
  kernel.enter();
  auto& all = *requests_;
  for (auto& receive : all.receives) {
    if (!receive.complete && receive.request == 0) all.match(receive);
  }
  all.send_granted();
  all.receive_data();
  std::vector<std::pair<Done, std::size_t>> done;
  const auto take = [&](auto& pending) {
    std::erase_if(pending, [&](auto& request) {
      if (!request.complete) return false;
      done.emplace_back(std::move(request.done), request.bytes);
      return true;
    });
  };
  take(all.sends);
  take(all.receives);
  // MPI reports messages in any order.
  for (std::size_t i = done.size(); i > 1; --i) {
    std::swap(done[i - 1], done[kernel.random().bits() % i]);
  }
  for (const auto& [call, bytes] : done) {
    if (call) call(bytes);
  }
  return !done.empty();
}

}  // namespace lockstep::mpi
