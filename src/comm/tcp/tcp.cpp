#include "comm/tcp/tcp.h"

#include <poll.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "comm/control/joining.h"
#include "comm/messages/message_communicator.h"
#include "comm/messages/message_rank_context.h"
#include "comm/tcp/tcp_transport.h"
#include "comm/ucx/ucx.h"
#include "core/log.h"
#include "core/text.h"
#include "lockstep/error.h"

// Note [How ranks connect over TCP]
// First every rank listens for the streams of higher ranks. Then all ranks connect to rank 0: these
// are the control connections, by which rank 0 also sends the offers of all ranks to all. From here
// on a rank that fails ends the world for all. Last every rank connects its streams to the lower
// ranks, in their order, and waits for those of the higher ranks. Rank 0 waits for no other rank,
// so rank 1 does not wait for long, and so on.
// If all offers say that their ranks can use UCX, streams carry only the ranks' addresses of UCX,
// which connects the ranks.

namespace lockstep::inline v0_2::tcp {
namespace {

using control::Gathering;
using control::Offer;
using messages::MessageCommunicator;
using messages::MessageRankContext;

/// The connections of this rank to others, until the world has them.
class Joining {
 public:
  Joining(const messages::Options& options, const Meeting& meeting)
      : options_(options), meeting_(meeting) {
    settings_ = messages::control_settings(options, meeting.rank, meeting.size);
    settings_.on_wait = meeting.on_wait;
    streams_ = settings_;
    streams_.purpose = "tcp";
    streams_.token.emplace();  // that of the world, as soon as it is known
    streams_.on_wait = [this] {
      if (!context_) return;
      const MessageRankContext::CallGuard guard(*context_);
      if (context_->failed()) context_->throw_failure("init (tcp)");
    };
    from_higher_.emplace(streams_);
    settings_.offer = from_higher_->offer();
    load_ucx();
    settings_.offer->ucx = ucx_ != nullptr;
  }

  ~Joining() { control::erase(*streams_.token); }
  Joining(const Joining&) = delete;
  Joining& operator=(const Joining&) = delete;

  std::shared_ptr<MessageRankContext> run() {
    auto members = connect_control();
    from_higher_->set_token(*streams_.token);
    const auto local_size =
        static_cast<int>(std::ranges::count(offers_, settings_.network, &Offer::network));
    const bool over_ucx = std::ranges::all_of(offers_, &Offer::ucx);
    std::unique_ptr<messages::Network> network;
    if (over_ucx) {
      ucx_->set_local_size(local_size);
      network = std::move(ucx_);
    } else {
      const auto limit = members.empty() ? settings_.heartbeat : members.front().heartbeat;
      network = std::make_unique<TcpTransport>(meeting_.rank, meeting_.size, local_size, limit);
    }
    auto& transport = *network;
    context_ = std::make_shared<MessageRankContext>(options_, std::move(network));
    context_->watch(std::move(members), settings_.host);
    try {
      if (over_ucx) {
        connect(static_cast<ucx::Ucx&>(transport));
      } else {
        expect_no_ucx();
        connect(static_cast<TcpTransport&>(transport));
      }
    } catch (const std::exception& error) {
      context_->end_by(detail::failure_of(error));
      throw;
    }
    return std::move(context_);
  }

 private:
  std::vector<control::Member> connect_control() {
    if (meeting_.rank > 0) {
      std::vector<control::Member> rank_0;
      const auto find = [this] {
        auto offer = meeting_.find();
        streams_.token = offer.token;
        return offer;
      };
      rank_0.push_back(control::join(find, settings_, &offers_));
      return rank_0;
    }
    auto settings = settings_;
    settings.port = meeting_.port;
    settings.listening = meeting_.listening;
    settings.token = meeting_.token;
    Gathering gathering(settings);
    streams_.token = gathering.offer().token;
    meeting_.publish(gathering.offer());
    auto members = gathering.wait();
    offers_ = gathering.offers();
    return members;
  }

  void load_ucx() {
    const bool is_automatic = options_.transport == TransportKind::automatic;
    if (is_automatic ? !ucx::has_device() : options_.transport == TransportKind::tcp) return;
    try {
      auto network = ucx::create(meeting_.rank, meeting_.size);
      const auto bytes = network->address().size();
      if (bytes > control::longest_payload) {
        throw BackendUnavailable(
            detail::concat("ucx: got an address of ", bytes, " bytes, expected at most ",
                           control::longest_payload, ": name fewer devices by UCX_NET_DEVICES"));
      }
      ucx_ = std::move(network);
    } catch (const BackendUnavailable& error) {
      why_no_ucx_ = error.what();
      log::warn(why_no_ucx_);
    }
  }

  void expect_no_ucx() const {
    if (options_.transport != TransportKind::ucx) return;
    std::vector<int> without;
    for (const auto& offer : offers_) {
      if (!offer.ucx) without.push_back(offer.rank);
    }
    throw CommError(
        detail::concat("init (ucx): got LOCKSTEP_TRANSPORT=ucx, but ", detail::rank_list(without),
                       " offers no UCX", why_no_ucx_.empty() ? "" : ": ", why_no_ucx_),
        {.rank = without.front()});
  }

  bool is_lower(const control::Member& member) const { return member.rank < meeting_.rank; }

  void connect(TcpTransport& transport) {
    for_streams([&](control::Member& member) {
      if (is_lower(member)) {
        member.connection.send({.kind = last_frame});
      } else {
        await_last_frame(member);
      }
      auto [socket, received] = member.connection.release();
      transport.connect(member.rank, std::move(socket), received);
    });
  }

  /// The lower rank of a stream sends its address first.
  void connect(ucx::Ucx& transport) {
    const control::Frame own{.kind = last_frame, .payload = transport.address()};
    transport.connect(meeting_.rank, own.payload);
    for_streams([&](control::Member& member) {
      if (!is_lower(member)) member.connection.send(own);
      transport.connect(member.rank, await_last_frame(member));
      if (is_lower(member)) member.connection.send(own);
    });
  }

  /// Calls a function for the stream to each lower rank, then for that of each higher rank.
  template <class Exchange>
  void for_streams(const Exchange& exchange) {
    for (auto& offer : offers_) {
      if (offer.rank >= meeting_.rank) continue;
      offer.token = *streams_.token;
      auto member = control::join(offer, streams_);
      exchange(member);
    }
    for (auto& member : from_higher_->wait()) exchange(member);
  }

  /// The payload of the frame. The rank may have sent heartbeats before, while it waited.
  std::string await_last_frame(control::Member& member) {
    for (bool open = true;; open = member.connection.receive()) {
      while (const auto frame = member.connection.next()) {
        if (frame->kind == last_frame) return frame->payload;
      }
      if (!open) {
        throw CommError(detail::concat("tcp: rank ", member.rank, " on host ", member.host,
                                       " closed its stream while ranks joined"),
                        {.rank = member.rank});
      }
      streams_.on_wait();
      pollfd waiting{.fd = member.connection.fd(), .events = POLLIN, .revents = 0};
      ::poll(&waiting, 1, static_cast<int>(control::poll_interval.count()));
    }
  }

  /// Ends the frames on a stream. Messages follow it, in both directions.
  static constexpr auto last_frame = control::Kind::all_here;

  const messages::Options& options_;
  const Meeting& meeting_;
  control::Settings settings_;  ///< of the control connections
  control::Settings streams_;
  std::optional<Gathering> from_higher_;
  std::unique_ptr<ucx::Ucx> ucx_;  ///< null if this rank cannot use it, or shall not
  std::string why_no_ucx_;
  std::vector<Offer> offers_;
  std::shared_ptr<MessageRankContext> context_;
};

}  // namespace

std::shared_ptr<Communicator> create(const messages::Options& options, const Meeting& meeting) {
  const auto context = Joining(options, meeting).run();
  keep(context);
  const auto world = MessageCommunicator::world(context);
  messages::begin(*world, options.records, options.progress != ProgressMode::wait);
  return world;
}

}  // namespace lockstep::tcp
