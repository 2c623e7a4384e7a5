#include "comm/mpi/mpi_transport.h"

#include <mpi.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "core/text.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::mpi {
namespace {

using detail::concat;

/// Most bytes of one MPI message: its count is an int.
constexpr std::size_t longest_part = std::size_t{1} << 30;

void check(int code, const char* function) {
  if (code == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  throw CommError(
      concat("mpi: ", function, ": ", std::string(text.data(), static_cast<std::size_t>(length))));
}

}  // namespace

/// The pending messages: an array of MPI requests, and for each request its message.
struct MpiTransport::Requests {
  MPI_Comm world = MPI_COMM_NULL;
  std::vector<MPI_Request> requests;
  std::vector<std::shared_ptr<Message>> messages;
  // Results of progress(), kept to reuse their memory.
  std::vector<int> indices;
  std::vector<MPI_Status> statuses;
  messages::Completions complete;
};

MpiTransport::MpiTransport() : requests_(std::make_unique<Requests>()) {
  auto& world = requests_->world;
  check(MPI_Comm_dup(MPI_COMM_WORLD, &world), "MPI_Comm_dup");
  check(MPI_Comm_set_errhandler(world, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  check(MPI_Comm_rank(world, &rank_), "MPI_Comm_rank");
  check(MPI_Comm_size(world, &size_), "MPI_Comm_size");

  MPI_Comm local = MPI_COMM_NULL;
  check(MPI_Comm_split_type(world, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &local),
        "MPI_Comm_split_type");
  check(MPI_Comm_size(local, &local_size_), "MPI_Comm_size");
  check(MPI_Comm_free(&local), "MPI_Comm_free");

  const int* bound = nullptr;
  int found = 0;
  check(MPI_Comm_get_attr(world, MPI_TAG_UB, static_cast<void*>(&bound), &found),
        "MPI_Comm_get_attr");
  constexpr int least_bound = 32767;  // guaranteed by the MPI standard
  last_tag_ = found != 0 ? *bound : least_bound;
}

// The communicator is not freed: MPI_Comm_free may wait for ranks that have ended.
MpiTransport::~MpiTransport() { stop(); }

void MpiTransport::stop() noexcept {
  // Messages that MPI may still send, whose memory must never be freed.
  static auto& unsent = *new std::vector<std::shared_ptr<Message>>;
  auto& all = *requests_;
  for (std::size_t i = 0; Library::running() && i < all.requests.size(); ++i) {
    if (all.requests[i] == MPI_REQUEST_NULL) continue;
    if (all.messages[i]->receiving) {
      MPI_Cancel(&all.requests[i]);
    } else {
      unsent.push_back(all.messages[i]);
    }
    MPI_Request_free(&all.requests[i]);
  }
  all.requests.clear();
  all.messages.clear();
}

template <class Begin>
void MpiTransport::begin(std::size_t bytes, Message message, const Begin& begin_part) {
  message.parts = std::max<std::size_t>((bytes + longest_part - 1) / longest_part, 1);
  const auto shared = std::make_shared<Message>(std::move(message));
  for (std::size_t part = 0; part < shared->parts; ++part) {
    const std::size_t at = part * longest_part;
    MPI_Request request = MPI_REQUEST_NULL;
    begin_part(at, static_cast<int>(std::min(bytes - at, longest_part)), &request);
    requests_->requests.push_back(request);
    requests_->messages.push_back(shared);
  }
}

void MpiTransport::send(const std::byte* data, std::size_t bytes, int to, int tag, Done done) {
  begin(bytes, {.receiving = false, .done = std::move(done)},
        [&](std::size_t at, int count, MPI_Request* request) {
          check(MPI_Isend(data + at, count, MPI_BYTE, to, tag, requests_->world, request),
                "MPI_Isend");
        });
}

void MpiTransport::receive(std::byte* data, std::size_t bytes, int from, int tag, Done done) {
  const int source = from == anyone ? MPI_ANY_SOURCE : from;
  begin(bytes, {.receiving = true, .done = std::move(done)},
        [&](std::size_t at, int count, MPI_Request* request) {
          check(MPI_Irecv(data + at, count, MPI_BYTE, source, tag, requests_->world, request),
                "MPI_Irecv");
        });
}

bool MpiTransport::progress() {
  auto& all = *requests_;
  if (all.requests.empty()) return false;
  const auto count = static_cast<int>(all.requests.size());
  all.indices.resize(all.requests.size());
  all.statuses.resize(all.requests.size());
  int finished = 0;
  const int code =
      MPI_Testsome(count, all.requests.data(), &finished, all.indices.data(), all.statuses.data());
  if (code == MPI_ERR_IN_STATUS) {
    for (int i = 0; i < finished; ++i) {
      check(all.statuses[static_cast<std::size_t>(i)].MPI_ERROR, "MPI_Testsome");
    }
  }
  check(code, "MPI_Testsome");
  if (finished == MPI_UNDEFINED || finished == 0) return false;

  for (std::size_t i = 0; i < static_cast<std::size_t>(finished); ++i) {
    auto& message = all.messages[static_cast<std::size_t>(all.indices[i])];
    int bytes = 0;
    if (message->receiving) MPI_Get_count(&all.statuses[i], MPI_BYTE, &bytes);
    message->bytes += static_cast<std::size_t>(bytes);
    if (--message->parts == 0) all.complete.add(std::move(message->done), message->bytes);
  }
  for (std::size_t i = 0; i < all.requests.size(); ++i) {
    // MPI_Testsome() has set the finished ones, also those of a call that failed.
    if (all.requests[i] == MPI_REQUEST_NULL) all.messages[i] = nullptr;
  }
  std::erase(all.requests, MPI_REQUEST_NULL);
  std::erase(all.messages, nullptr);
  all.complete.call();
  return true;
}

}  // namespace lockstep::mpi
