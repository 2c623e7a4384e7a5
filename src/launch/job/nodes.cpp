#include "launch/job/nodes.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <numeric>
#include <sstream>
#include <utility>

#include "comm/control/handshake.h"
#include "comm/control/joining.h"
#include "core/environment.h"
#include "core/system/topology.h"
#include "core/text.h"
#include "launch/job/console.h"
#include "lockstep/error.h"

// Note [How nodes watch one another]
// control::Gathering and control::join() connect nodes: a node's number is its rank there.
// control::Control, which watches ranks, ends its work with the first failure. Nodes watch one
// another longer: until the last rank of all nodes has ended, since they agree on the first cause
// and on a restart. So this class sends heartbeats and failures as Control does, in the launcher's
// own loop. It also exchanges texts: the numbers of ranks before an attempt, the results after it.
// Each attempt has new connections, so a launcher that was started again may replace a lost one.

namespace lockstep::inline v0_2::launch {
namespace {

using control::Frame;
using control::Kind;
using detail::concat;
using detail::Failure;
using std::chrono::milliseconds;

constexpr auto last_time = milliseconds(1000);
constexpr int heartbeats_per_limit = 8;
constexpr auto longest_interval = milliseconds(500);

std::string interface_of(const Options& options) {
  return options.interface.empty() ? Environment::get().interface : options.interface;
}

std::optional<milliseconds> of_seconds(std::optional<double> seconds) {
  if (!seconds) return std::nullopt;
  return milliseconds(static_cast<long>(*seconds * 1000));
}

/// Joins or gathers the nodes.
std::vector<control::Member> join_nodes(const Options& options, const control::Token& token,
                                        std::function<void()> on_wait,
                                        std::function<bool(int)> enough) {
  const auto& node = options.node;
  const auto& environment = Environment::get();
  const control::Settings settings{
      .purpose = "run",
      .noun = "node",
      .rank = node.number,
      .size = node.count,
      .host = detail::host_name(),
      .interface = interface_of(options),
      .timeout = rendezvous_time(options),
      .heartbeat = environment.heartbeat,
      .stall_warning = of_seconds(options.stall_warning).value_or(environment.stall_warning),
      .on_wait = std::move(on_wait),
      .enough = std::move(enough),
      .port = node.number == 0 ? node.port : std::uint16_t{0},
      .token = token};
  if (node.number == 0) return control::Gathering(settings).wait();
  std::vector<control::Member> members;
  members.push_back(control::join(control::offer_at(node.host, node.port, token), settings));
  return members;
}

}  // namespace

milliseconds rendezvous_time(const Options& options) {
  return of_seconds(options.timeout).value_or(Environment::get().timeout);
}

Nodes::Nodes(const Options& options, std::function<void()> on_wait, std::function<bool(int)> enough)
    : place_(options.node),
      token_(place_.token.empty() ? control::token_of_file()
                                  : control::parse_token("LOCKSTEP_NODE_TOKEN", place_.token)),
      limit_(Environment::get().heartbeat) {
  const auto add_absent = [this](int end) {
    while (is_node_0() && static_cast<int>(peers_.size()) + 1 < end) {
      const int number = static_cast<int>(peers_.size()) + 1;
      peers_.push_back({.member = {.connection = control::Connection({}), .rank = number},
                        .present = false,
                        .lost = true,
                        .text = ""});
    }
  };
  for (auto& member : join_nodes(options, token_, std::move(on_wait), std::move(enough))) {
    add_absent(member.rank);
    limit_ = member.heartbeat;
    member.connection.allow_silence(limit_);
    peers_.push_back({.member = std::move(member)});
  }
  add_absent(place_.count);
  interval_ = std::clamp(limit_ / heartbeats_per_limit, milliseconds(1), longest_interval);
}

Nodes::~Nodes() {
  control::erase(token_);
  std::vector<control::Connection*> connections;
  for (auto& peer : peers_) {
    if (peer.present) connections.push_back(&peer.member.connection);
  }
  control::flush(connections, last_time);
  // A close before the others have read everything could reset their connections.
  const auto until = Clock::now() + last_time;
  while (is_node_0() && !connections.empty() && Clock::now() < until) {
    std::erase_if(connections, [](control::Connection* one) { return !one->receive(); });
    poll(nullptr, 0, 1);
  }
}

void Nodes::await(std::vector<pollfd>& awaited) const {
  for (const auto& peer : peers_) {
    if (peer.present) {
      awaited.push_back({.fd = peer.member.connection.fd(), .events = POLLIN, .revents = 0});
    }
  }
}

Nodes::Clock::time_point Nodes::next() const {
  return updated_ + std::max<Clock::duration>(heartbeat_ + interval_ - running_, {});
}

void Nodes::update() {
  const auto now = Clock::now();
  const auto step = now - std::exchange(updated_, now);
  if (step <= std::max<Clock::duration>(2 * interval_, limit_ / 2)) running_ += step;
  if (step > limit_) {
    last_stop_ = step;
    after_stop_ = running_;
  }
  for (auto& peer : peers_) {
    if (!peer.present) continue;
    const bool open = peer.member.connection.receive();
    read(peer);
    if (!peer.present) continue;
    if (!open) {
      const int code = peer.member.connection.error();
      // The other nodes count this one as lost. Their messages may arrive after their end.
      if (peer.end.empty() && last_stop_ > limit_ && running_ - after_stop_ <= limit_) {
        peer.end = failed_text(place_.number, detail::host_name(),
                               concat("its launcher had been stopped for ",
                                      std::chrono::round<std::chrono::seconds>(last_stop_).count(),
                                      " s, longer than LOCKSTEP_HEARTBEAT, ",
                                      static_cast<double>(limit_.count()) / 1000, " s"));
      }
      lose(peer, code == 0 ? "its launcher has ended"
                           : concat("the connection to it broke: ", std::strerror(code)));
    } else if (running_ - peer.last_frame > limit_) {
      lose(peer, concat("no heartbeat from its launcher for ",
                        static_cast<double>(limit_.count()) / 1000, " s (LOCKSTEP_HEARTBEAT)"));
    }
  }
  const bool due = running_ - heartbeat_ >= interval_;
  if (due) heartbeat_ = running_;
  for (auto& peer : peers_) {
    if (peer.present && peer.member.connection.flush() && due) {
      peer.member.connection.send({.kind = Kind::heartbeat});
    }
  }
}

std::optional<int> Nodes::take_end_signal() {
  const auto number = [](const Frame& frame) {
    const auto signal = detail::parse_number<int>(frame.payload);
    return frame.kind == signal_kind && signal && !is_forwarded(*signal) ? *signal : 0;
  };
  const auto found = std::ranges::find_if(received_, number);
  if (found == received_.end()) return std::nullopt;
  const int signal = number(*found);
  received_.erase(found);
  return signal;
}

void Nodes::read(Peer& peer) {
  try {
    while (auto frame = peer.member.connection.next()) {
      peer.last_frame = running_;
      if (frame->kind == text_kind) {
        if (is_node_0()) {
          peer.text = frame->payload;
          collect();
        } else {
          texts_.push_back(frame->payload);
        }
      } else if (frame->kind == Kind::failed || frame->kind == signal_kind) {
        const auto failure = control::failure_in(*frame);
        for (const int ending : {peer.member.rank, place_.number}) {
          if (failure && failure->text.starts_with(concat("node ", ending, ' '))) {
            peer.end = failure->text;
          }
        }
        if (is_node_0()) send(*frame, peer.member.rank);
        received_.push_back(std::move(*frame));
      }
    }
  } catch (const CommError& error) {
    peer.member.connection.send(control::failure_frame(
        {.text = failed_text(peer.member.rank, peer.member.host, error.what())}));
    lose(peer, error.what());
  }
}

void Nodes::lose(Peer& peer, const std::string& why) {
  peer.present = false;
  const auto text =
      peer.end.empty() ? failed_text(peer.member.rank, peer.member.host, why) : peer.end;
  peer.text = concat(lost_text, text);
  const auto frame = control::failure_frame({.text = text});
  if (is_node_0()) send(frame, peer.member.rank);
  collect();
  received_.push_back(frame);
}

std::vector<int> Nodes::lost() const {
  std::vector<int> numbers;
  for (const auto& peer : peers_) {
    if (peer.lost) numbers.push_back(peer.member.rank);
  }
  return numbers;
}

std::string Nodes::failed_text(int number, std::string_view host, std::string_view why) const {
  return concat("node ", number, " of ", place_.count, " failed first: ", why, " (host ", host,
                ")");
}

void Nodes::send(const Frame& frame, int but) {
  for (auto& peer : peers_) {
    if (peer.present && peer.member.rank != but) peer.member.connection.send(frame);
  }
}

void Nodes::exchange(const std::string& text) {
  own_text_ = text;
  if (!is_node_0()) send({.kind = text_kind, .payload = text});
  collect();
}

void Nodes::collect() {
  if (!own_text_ ||
      !std::ranges::all_of(peers_, [](const Peer& peer) { return peer.text.has_value(); })) {
    return;
  }
  if (!is_node_0()) {
    // Node 0 is lost, unless it has sent all texts: it may begin the next attempt, and then closes
    // its connection.
    const auto count = static_cast<std::size_t>(place_.count);
    auto& node_0 = peers_.front();
    node_0.lost = texts_.size() < count;
    texts_.resize(count, *node_0.text);
    texts_[static_cast<std::size_t>(place_.number)] = *own_text_;
    return;
  }
  texts_ = {*own_text_};
  for (auto& peer : peers_) {
    texts_.push_back(*peer.text);
    peer.lost = !peer.present;
    if (peer.present) peer.text.reset();
  }
  for (const auto& text : texts_) send({.kind = text_kind, .payload = text});
  own_text_.reset();
}

std::optional<std::vector<std::string>> Nodes::texts() {
  if (texts_.size() < static_cast<std::size_t>(place_.count)) return std::nullopt;
  own_text_.reset();
  return std::exchange(texts_, {});
}

Start start_attempt(const Plan& plan, int restarts, Nodes& nodes,
                    const std::function<void()>& wait) {
  const auto& node = plan.options.node;
  Start start;
  std::string own = concat(plan.options.ranks, ' ', restarts);
  if (node.number == 0) {
    const auto interface = interface_of(plan.options);
    start.listening =
        interface.empty()
            ? control::listen_anywhere()
            : control::listen_at(control::usable_interfaces(interface).front().addresses.front());
    if (!start.listening) throw_system("listen on a port for rank 0");
    const auto address = control::Address::local(start.listening.get());
    own += concat(' ', plan.run_id, ' ', address.port(), ' ',
                  control::hexadecimal(control::random_bytes()), ' ',
                  interface.empty() ? "" : address.host());
  }
  nodes.exchange(own);
  std::optional<std::vector<std::string>> texts;
  while (!(texts = nodes.texts())) wait();
  std::string run_id, port, random, host = node.host;
  std::vector<int> ranks;
  for (const auto& text : *texts) {
    const bool lost = text.starts_with(Nodes::lost_text);
    start.lost.push_back(lost ? text : "");
    std::istringstream words(lost ? "" : text);
    int count = 0, attempt = 0;
    words >> count >> attempt;
    if (ranks.empty()) words >> run_id >> port >> random >> host;
    if (text.empty()) start.absent.push_back(static_cast<int>(ranks.size()));
    ranks.push_back(count);
    restarts = std::max(restarts, attempt);
  }
  if (std::ranges::all_of(start.lost, &std::string::empty)) start.lost.clear();
  start.plan = attempt_of(plan, restarts);
  auto& made = start.plan;
  made.run_id = run_id;
  made.listens = static_cast<bool>(start.listening);
  made.first_rank = std::accumulate(ranks.begin(), ranks.begin() + node.number, 0);
  made.world_size = std::accumulate(ranks.begin(), ranks.end(), 0);
  if (host.find(':') != std::string::npos) host = concat('[', host, ']');
  made.master = concat(host, ':', port);
  made.token = control::hexadecimal(nodes.token_of(random));
  set_variables(made);
  return start;
}

}  // namespace lockstep::launch
