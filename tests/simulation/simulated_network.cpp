#include "tests/simulation/simulated_network.h"

#include "tests/simulation/simulated_files.h"

namespace lockstep::testing {

void Pipe::send(std::function<void()> arrive) {
  auto due = network_.scheduler().now() + network_.delay(from_, to_);
  if (may_be_late_) due += network_.lateness();
  packets_.emplace_back(packets_.empty() ? due : std::max(due, packets_.back().first),
                        std::move(arrive));
  if (!scheduled_) schedule();
}

void Pipe::schedule() {
  scheduled_ = true;
  network_.scheduler().at(packets_.front().first, [self = shared_from_this()] { self->deliver(); });
}

void Pipe::resume() {
  if (scheduled_ || packets_.empty()) return;
  packets_.front().first = network_.scheduler().now() + network_.delay(from_, to_);
  schedule();
}

void Pipe::deliver() {
  scheduled_ = false;
  if (network_.is_cut(from_, to_)) {
    network_.keep_until_healed(shared_from_this(), from_, to_);
    return;
  }
  auto arrive = std::move(packets_.front().second);
  packets_.pop_front();
  if (network_.powered(from_) && network_.powered(to_)) {
    network_.scheduler().trace("packet", from_, to_);
    arrive();
  }
  if (!scheduled_ && !packets_.empty()) schedule();
}

Time SimulatedNetwork::random_part(Time most) {
  return Time(
      static_cast<std::int64_t>(random_.bits() % (1 + static_cast<std::uint64_t>(most.count()))));
}

Time SimulatedNetwork::lateness() {
  if (settings_.late_percent == 0 || scheduler_.now() > std::chrono::minutes(1)) return Time(0);
  return random_.chance(settings_.late_percent) ? random_part(settings_.latest) : Time(0);
}

Time SimulatedNetwork::delay(int from, int to) {
  if (from == to) return std::chrono::microseconds(5) + random_part(std::chrono::microseconds(50));
  auto delay = settings_.delay + random_part(settings_.jitter);
  while (random_.chance(settings_.lost_percent)) delay += settings_.repeat;
  return delay;
}

void SimulatedNetwork::heal(int from, int to) {
  cut_.erase({from, to});
  for (const auto& kept : std::exchange(kept_[{from, to}], {})) {
    kept->resume();
  }
}

std::uint16_t SimulatedNetwork::bind(int host, std::uint16_t port,
                                     std::weak_ptr<SimulatedListener> listener) {
  auto& ports = hosts_[static_cast<std::size_t>(host)].ports;
  if (port == 0) {
    port = 20000;
    while (ports.contains(port) && !ports[port].expired()) ++port;
  }
  ports[port] = std::move(listener);
  return port;
}

std::shared_ptr<SimulatedListener> SimulatedNetwork::listener(int host, std::uint16_t port) {
  auto& ports = hosts_[static_cast<std::size_t>(host)].ports;
  const auto found = ports.find(port);
  if (found == ports.end()) return nullptr;
  auto listener = found->second.lock();
  return listener != nullptr && listener->listens() ? listener : nullptr;
}

}  // namespace lockstep::testing
