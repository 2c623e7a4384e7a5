#include "comm/tcp/tcp.h"

#include <poll.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "comm/control/gathering.h"
#include "comm/messages/message_communicator.h"
#include "comm/messages/message_rank_context.h"
#include "comm/tcp/tcp_transport.h"
#include "comm/tcp/worlds.h"
#include "core/log.h"
#include "core/text.h"
#include "lockstep/error.h"

// Note [How ranks connect over TCP]
// First every rank listens for the streams of higher ranks. Then all ranks connect to rank 0: these
// are the control connections, by which rank 0 also sends the offers of all ranks to all. From here
// on a rank that fails ends the world for all. Last every rank connects its streams to the lower
// ranks, in their order, and waits for those of the higher ranks. Rank 0 waits for no other rank,
// so rank 1 does not wait for long, and so on.

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
    streams_.on_wait = [this] {
      if (!context_) return;
      const MessageRankContext::CallGuard guard(*context_);
      if (context_->failed()) context_->throw_failure("init (tcp)");
    };
    from_higher_.emplace(streams_);
    settings_.offer = from_higher_->offer();
  }

  std::shared_ptr<MessageRankContext> run() {
    auto members = connect_control();
    const auto local_size = std::ranges::count(offers_, settings_.network, &Offer::network);
    auto network =
        std::make_unique<TcpTransport>(meeting_.rank, meeting_.size, static_cast<int>(local_size));
    auto& transport = *network;
    context_ = std::make_shared<MessageRankContext>(options_, std::move(network));
    context_->watch(std::move(members), settings_.host);
    try {
      connect_streams(transport);
    } catch (const CommError& error) {
      context_->end_by(detail::failure_of(error));
      throw;
    }
    return std::move(context_);
  }

 private:
  std::vector<control::Member> connect_control() {
    if (meeting_.rank > 0) {
      std::vector<control::Member> rank_0;
      rank_0.push_back(control::join(meeting_.find, settings_, &offers_));
      return rank_0;
    }
    auto settings = settings_;
    settings.port = meeting_.port;
    settings.listening = meeting_.listening;
    settings.token = meeting_.token;
    Gathering gathering(settings);
    meeting_.publish(gathering.offer());
    auto members = gathering.wait();
    offers_ = gathering.offers();
    return members;
  }

  void connect_streams(TcpTransport& transport) {
    for (const auto& offer : offers_) {
      if (offer.rank >= meeting_.rank) continue;
      auto member = control::join(offer, streams_);
      member.connection.send(last_frame);
      take(transport, member);
    }
    for (auto& member : from_higher_->wait()) {
      await_last_frame(member);
      take(transport, member);
    }
  }

  static void take(TcpTransport& transport, control::Member& member) {
    auto [socket, received] = member.connection.release();
    transport.connect(member.rank, std::move(socket), received);
  }

  /// The rank may have sent heartbeats before, while it waited.
  void await_last_frame(control::Member& member) {
    for (bool open = true;; open = member.connection.receive()) {
      while (const auto frame = member.connection.next()) {
        if (frame->kind == last_frame.kind) return;
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
  static inline const control::Frame last_frame{.kind = control::Kind::all_here};

  const messages::Options& options_;
  const Meeting& meeting_;
  control::Settings settings_;  ///< of the control connections
  control::Settings streams_;
  std::optional<Gathering> from_higher_;
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
