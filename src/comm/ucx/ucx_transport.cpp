#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <ucp/api/ucp.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <list>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "comm/ucx/ucx.h"
#include "comm/ucx/ucx_library.h"
#include "core/system/process.h"
#include "core/text.h"
#include "lockstep/error.h"

// Note [How messages go over UCX]
// A rank has one worker, and an endpoint for each rank. UCX matches messages by tags of 64 bits:
// here the sender's rank and the transport's tag. UCX calls back when a message is complete, within
// ucp_worker_progress(). A Done may begin other messages, so progress() calls it afterwards.
// An endpoint ends when its rank ends. The control connection of that rank ends at the same time,
// and says more. An error of UCX becomes one of the world only when no failure came for a while.
// An error of an endpoint counts only while a message to or from its rank is pending, since a rank
// that has left ends its endpoints, too. UCX ends no receive of a rank whose endpoint failed.
// A short message is complete before it is on the way: UCX may send its last bytes in a later call
// of ucp_worker_progress(). stop() therefore flushes the endpoints, unless the world has failed.

namespace lockstep::inline v0_2::ucx {
namespace {

using detail::concat;
using Clock = std::chrono::steady_clock;

/// Time until an error of UCX is one of the world, unless the control connections have named one.
constexpr auto error_timeout = std::chrono::seconds(2);
/// Longest time to send the last messages.
constexpr auto flush_timeout = std::chrono::seconds(1);
/// Longest time until UCX has ended abandoned messages.
constexpr auto cancel_timeout = std::chrono::milliseconds(200);
/// Calls of ucp_worker_progress() before complete messages are passed on.
constexpr int progress_at_once = 64;

constexpr std::uint64_t any_rank = 0xffffffff;
constexpr std::uint64_t one_rank = ~std::uint64_t{0};

class UcxTransport final : public Ucx {
 public:
  UcxTransport(int rank, int size) : peers_(static_cast<std::size_t>(size)) {
    rank_ = rank;
    size_ = size;
    last_tag_ = INT_MAX;
    try {
      begin();
    } catch (...) {
      end();
      throw;
    }
  }
  ~UcxTransport() override { stop(); }

  std::string address() const override {
    ucp_worker_attr_t found{};
    found.field_mask = UCP_WORKER_ATTR_FIELD_ADDRESS | UCP_WORKER_ATTR_FIELD_ADDRESS_FLAGS;
    found.address_flags = UCP_WORKER_ADDRESS_FLAG_NET_ONLY;
    expect(library_.worker_query(worker_, &found), "ucp_worker_query");
    std::string bytes(reinterpret_cast<const char*>(found.address), found.address_length);
    library_.release_address(worker_, found.address);
    return bytes;
  }

  void connect(int other, std::string_view address) override {
    if (worker_ == nullptr) return;
    auto& peer = peers_[static_cast<std::size_t>(other)];
    peer.transport = this;
    ucp_ep_params_t wanted{};
    wanted.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                        UCP_EP_PARAM_FIELD_ERR_HANDLER;
    wanted.address = reinterpret_cast<const ucp_address_t*>(address.data());
    wanted.err_mode = UCP_ERR_HANDLING_MODE_PEER;
    wanted.err_handler.arg = &peer;
    wanted.err_handler.cb = [](void* failed, ucp_ep_h, ucs_status_t status) {
      auto& of = *static_cast<Peer*>(failed);
      of.transport->note(of.error, status);
    };
    const auto status = library_.ep_create(worker_, &wanted, &peer.endpoint);
    if (status != UCS_OK) throw_error(other, status);
  }

  std::string_view name() const override { return "ucx"; }
  bool is_running() const noexcept override { return !process_.in_child(); }
  bool ends_together() const override { return false; }
  void abandon() noexcept override { abandoned_ = true; }

  void send(const std::byte* data, std::size_t bytes, int to, int tag, Done done) override {
    start({.other = to, .bytes = bytes, .done = std::move(done)}, [&](auto& parameters) {
      parameters.cb.send = on_sent;
      return library_.tag_send(peers_[static_cast<std::size_t>(to)].endpoint, data, bytes,
                               messages::key_of(rank_, tag), &parameters);
    });
  }

  void receive(std::byte* data, std::size_t bytes, int from, int tag, Done done) override {
    start({.other = from, .bytes = bytes, .done = std::move(done)}, [&](auto& parameters) {
      parameters.cb.recv = on_received;
      const auto mask = from == anyone ? any_rank : one_rank;
      return library_.tag_recv(worker_, data, bytes, messages::key_of(from, tag) & mask, mask,
                               &parameters);
    });
  }

  bool progress() override {
    if (worker_ == nullptr) return false;
    const bool news = advance();
    if (has_errors_) check_errors();
    return finished_.call() || news;
  }

  void stop() noexcept override {
    finished_.clear();
    if (worker_ == nullptr) return;
    if (process_.in_child()) {
      worker_ = nullptr;  // it is the parent's
      return;
    }
    if (abandoned_) {
      close(UCP_EP_CLOSE_FLAG_FORCE, cancel_timeout);
    } else {
      close(0, flush_timeout);
    }
    for (auto next = messages_.begin(); next != messages_.end();) {
      library_.request_cancel(worker_, (next++)->request);  // may call back
    }
    for (auto until = Clock::now() + cancel_timeout; !messages_.empty() && Clock::now() < until;) {
      if (!advance()) std::this_thread::yield();
    }
    finished_.clear();
    end();
  }

  void sleep(std::chrono::nanoseconds longest) override {
    if (worker_ == nullptr || !finished_.empty() || library_.worker_arm(worker_) != UCS_OK) return;
    if (!detail::await_event(events_.get(), longest)) return;
    std::uint64_t woken = 0;
    [[maybe_unused]] const auto got = ::read(wake_event_.get(), &woken, sizeof woken);
  }

  void interrupt() noexcept override {
    const std::uint64_t wake = 1;
    [[maybe_unused]] const auto written = ::write(wake_event_.get(), &wake, sizeof wake);
  }

 private:
  struct Message {
    int other;  ///< the other rank, or `anyone`
    std::size_t bytes;
    Done done;
    UcxTransport* transport = nullptr;
    std::list<Message>::iterator self = {};
    void* request = nullptr;  ///< of UCX
  };
  struct Failed {
    ucs_status_t status;
    Clock::time_point since = Clock::now();
  };
  struct Peer {
    ucp_ep_h endpoint = nullptr;
    std::optional<Failed> error = {};  ///< the first of the endpoint
    UcxTransport* transport = nullptr;
  };

  void begin() {
    const detail::SignalsBlocked blocked;  // in UCX's thread
    ucp_params_t wanted{};
    wanted.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_ESTIMATED_NUM_EPS;
    wanted.features = UCP_FEATURE_TAG | UCP_FEATURE_WAKEUP;
    wanted.estimated_num_eps = peers_.size();
    expect(library_.init_version(UCP_API_MAJOR, UCP_API_MINOR, &wanted, nullptr, &context_),
           "ucp_init");
    ucp_worker_params_t mode{};
    mode.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
    mode.thread_mode = UCS_THREAD_MODE_SERIALIZED;
    expect(library_.worker_create(context_, &mode, &worker_), "ucp_worker_create");
    if (!events_ || !wake_event_) {
      throw BackendUnavailable(
          concat("ucx: rank ", rank_, " cannot open a descriptor: ", std::strerror(errno)));
    }
    int wakeup = -1;
    expect(library_.worker_get_efd(worker_, &wakeup), "ucp_worker_get_efd");
    for (const int descriptor : {wakeup, wake_event_.get()}) {
      epoll_event event{.events = EPOLLIN, .data = {.fd = descriptor}};
      if (::epoll_ctl(events_.get(), EPOLL_CTL_ADD, descriptor, &event) == 0) continue;
      throw BackendUnavailable(
          concat("ucx: rank ", rank_, " cannot watch UCX: ", std::strerror(errno)));
    }
  }

  void end() {
    if (worker_ != nullptr) library_.worker_destroy(std::exchange(worker_, nullptr));
    if (context_ != nullptr) library_.cleanup(std::exchange(context_, nullptr));
  }

  void expect(ucs_status_t status, const char* function) const {
    if (status == UCS_OK) return;
    throw BackendUnavailable(
        concat("ucx: rank ", rank_, ": ", function, ": ", library_.status_text(status)));
  }

  [[noreturn]] void throw_error(int other, ucs_status_t status) const {
    throw CommError(concat("ucx: rank ", rank_, " and ",
                           other == anyone ? "another rank" : concat("rank ", other),
                           " cannot exchange messages: ", library_.status_text(status),
                           "; LOCKSTEP_TRANSPORT=tcp uses TCP"));
  }

  void note(std::optional<Failed>& first, ucs_status_t status) {
    if (!first) first = Failed{.status = status};
    has_errors_ = true;
  }

  void check_errors() const {
    const auto is_old = [](const std::optional<Failed>& error) {
      return error && Clock::now() - error->since > error_timeout;
    };
    if (is_old(error_)) throw_error(anyone, error_->status);
    for (std::size_t other = 0; other < peers_.size(); ++other) {
      const int rank = static_cast<int>(other);
      if (!is_old(peers_[other].error)) continue;
      const bool is_used = std::ranges::find(messages_, rank, &Message::other) != messages_.end();
      if (is_used) throw_error(rank, peers_[other].error->status);
    }
  }

  /// Begins a message. call: gives UCX the parameters, and returns its request.
  template <class Call>
  void start(Message message, const Call& call) {
    if (worker_ == nullptr) return;
    auto& kept = messages_.emplace_back(std::move(message));
    kept.transport = this;
    kept.self = std::prev(messages_.end());
    ucp_request_param_t parameters{};
    parameters.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                              UCP_OP_ATTR_FIELD_MEMORY_TYPE | UCP_OP_ATTR_FIELD_RECV_INFO;
    parameters.user_data = &kept;
    parameters.memory_type = UCS_MEMORY_TYPE_HOST;
    ucp_tag_recv_info_t received{.sender_tag = 0, .length = kept.bytes};
    parameters.recv_info.tag_info = &received;
    starting_ = &kept;
    void* const request = call(parameters);
    if (std::exchange(starting_, nullptr) == nullptr) return;  // UCX has called back already
    kept.request = request;
    if (UCS_PTR_IS_PTR(request)) return;  // UCX will call back
    kept.bytes = received.length;
    over(kept, UCS_PTR_STATUS(request));
  }

  static void on_sent(void* request, ucs_status_t status, void* data) {
    auto& message = *static_cast<Message*>(data);
    message.transport->library_.request_free(request);
    message.transport->over(message, status);
  }

  static void on_received(void* request, ucs_status_t status, const ucp_tag_recv_info_t* info,
                          void* data) {
    if (status == UCS_OK) static_cast<Message*>(data)->bytes = info->length;
    on_sent(request, status, data);
  }

  void over(Message& message, ucs_status_t status) {
    if (status == UCS_OK) {
      finished_.add(std::move(message.done), message.bytes);
    } else {
      note(error_, status);
    }
    if (starting_ == &message) starting_ = nullptr;
    messages_.erase(message.self);
  }

  bool advance() {
    bool news = false;
    for (int i = 0; i < progress_at_once && library_.worker_progress(worker_) > 0; ++i) news = true;
    return news;
  }

  /// Closes the endpoints, and waits until UCX has ended their messages.
  void close(unsigned flags, Clock::duration longest) {
    std::vector<void*> requests;
    ucp_request_param_t parameters{};
    parameters.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    parameters.flags = flags;
    for (auto& peer : peers_) {
      if (peer.endpoint == nullptr) continue;
      void* const request = library_.ep_close(std::exchange(peer.endpoint, nullptr), &parameters);
      if (UCS_PTR_IS_PTR(request)) requests.push_back(request);
    }
    const auto in_progress = [&](void* request) {
      return library_.check_status(request) == UCS_INPROGRESS;
    };
    for (const auto until = Clock::now() + longest;
         std::ranges::any_of(requests, in_progress) && Clock::now() < until;) {
      if (!advance()) std::this_thread::yield();
    }
    for (auto* request : requests) library_.request_free(request);
  }

  const Library& library_ = Library::get();
  detail::ForkGuard process_;
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;  ///< null after stop()
  std::vector<Peer> peers_;        ///< by rank; UCX has their addresses
  std::list<Message> messages_;
  const Message* starting_ = nullptr;  ///< the message that start() is passing to UCX
  messages::Completions finished_;
  std::optional<Failed> error_;  ///< the first of a message
  bool has_errors_ = false;      ///< of a message or an endpoint
  std::atomic<bool> abandoned_ = false;
  detail::Descriptor events_{::epoll_create1(EPOLL_CLOEXEC)};
  detail::Descriptor wake_event_{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
};

}  // namespace

bool has_device() {
  const auto begins_with = [](const std::filesystem::path& file, std::string_view text) {
    std::string line;
    return std::getline(std::ifstream(file), line) && line.starts_with(text);
  };
  const auto entries = [](const std::filesystem::path& folder) {
    std::error_code none;
    return std::filesystem::directory_iterator(folder, none);
  };
  for (const auto& device : entries("/sys/class/infiniband")) {
    // Channel adapters: not the RNICs of iWARP, and not EFA. Those of Omni-Path say that they are.
    if (!begins_with(device.path() / "node_type", "1:")) continue;
    if (device.path().filename().string().starts_with("hfi1")) continue;
    for (const auto& port : entries(device.path() / "ports")) {
      if (begins_with(port.path() / "state", "4: ACTIVE")) return true;
    }
  }
  return false;
}

std::string available() {
  const Settings settings;
  try {
    Library::get();
    return {};
  } catch (const BackendUnavailable& error) {
    return error.what();
  }
}

std::unique_ptr<Ucx> create(int rank, int size) {
  const Settings settings;
  return std::make_unique<UcxTransport>(rank, size);
}

}  // namespace lockstep::ucx
