#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <thread>

#include "comm/waiting.h"
#include "tests/random_hangs/hang.h"

namespace lockstep::testing {
namespace {

using detail::concat;

constexpr std::size_t most = std::size_t{1} << 18;
constexpr int most_wrappers = 3;

/// Makes every step of an operation take up to 200 ms.
class SlowWork final : public detail::WorkObserver {
 public:
  explicit SlowWork(int rank) : random_(static_cast<unsigned>(rank)) {
    detail::this_threads_work_observer = this;
  }
  ~SlowWork() { detail::this_threads_work_observer = nullptr; }
  SlowWork(const SlowWork&) = delete;
  SlowWork& operator=(const SlowWork&) = delete;

  void worked(std::chrono::steady_clock::time_point,
              std::chrono::steady_clock::time_point) noexcept override {
    std::this_thread::sleep_for(std::chrono::milliseconds(random_() % 200));
  }

 private:
  std::mt19937 random_;
};

class Rank {
 public:
  Rank(const Hang& hang, const std::shared_ptr<Communicator>& world,
       const std::filesystem::path& folder)
      : hang_(hang), world_(world), folder_(folder), input_(most * 8), output_(most * 8) {
    // Groups are created by all ranks, whether they need them or not.
    group_ = world->split(hang.is_member(rank()) ? 0 : -1, rank());
    second_ = world->split(hang.is_member(rank()) ? 0 : -1, rank());
    if (static_cast<int>(hang.group.size()) == hang.size) group_ = world;
    for (int i = 0; hang.fault == Fault::skips_wrapper && i < most_wrappers; ++i) {
      wrappers_.push_back(world->split(hang.is_member(rank()) ? 0 : -1, rank()));
    }
  }

  [[noreturn]] void run() {
    std::mt19937_64 random(hang_.seed * 7919 + hang_.index);
    for (int i = 0; i < hang_.before; ++i) {
      const std::size_t count = 1 + random() % 3000;
      const bool in_group = random() % 2 == 0;
      if (in_group && group_ != nullptr) issue(*group_, Collective::all_reduce, count).wait();
      if (!in_group) issue(*world_, Collective::all_reduce, count).wait();
    }
    switch (hang_.fault) {
      case Fault::receives:
      case Fault::silent_sender:
        messages();  // does not return
      case Fault::skips:
        if (rank() == hang_.culprit) {
          // The second group has the same members, who wait in the first.
          wait_in(*second_, Collective::barrier);
        }
        break;
      case Fault::other_group:
        if (rank() == hang_.culprit) wait_in(*second_, hang_.last);
        break;
      case Fault::skips_wrapper:
        if (hang_.is_member(rank())) train();
        end();
      case Fault::never_waits:
        if (rank() == hang_.culprit) {
          const auto work = issue(*group_, Collective::all_reduce, most);
          say("none");
          spin();
        }
        if (hang_.is_member(rank())) wait_in(*group_, Collective::all_reduce, most);
        end();
      case Fault::in_transit:
        if (hang_.is_member(rank())) be_in_transit();
        end();
      default:
        if (rank() == hang_.culprit) fail();
    }
    if (hang_.is_member(rank())) wait_in(*group_, hang_.last);
    end();
  }

 private:
  int rank() const { return world_->rank(); }

  Work issue(Communicator& group, Collective what, std::size_t count) {
    void* in = input_.data();
    void* out = output_.data();
    switch (what) {
      case Collective::broadcast:
        return group.broadcast(in, count, DType::f32, 0);
      case Collective::all_gather:
        return group.all_gather(in, out, count, DType::f32);
      case Collective::reduce_scatter:
        return group.reduce_scatter(in, out, count, DType::f32, ReduceOp::sum);
      case Collective::barrier:
        return group.barrier();
      default:
        return group.all_reduce(in, count, DType::f32, ReduceOp::sum);
    }
  }

  [[noreturn]] void wait_in(Communicator& group, Collective what, std::size_t count = 100) {
    std::vector<int> members;
    for (int member = 0; member < group.size(); ++member) {
      members.push_back(group.world_rank(member));
    }
    say(concat(name(what), ' ', detail::rank_list(members)));
    issue(group, what, count).wait();
    end();
  }

  /// An operation of 64 or more steps.
  [[noreturn]] void be_in_transit() {
    constexpr std::size_t count = std::size_t{4} << 20;
    input_.resize(count * sizeof(float));
    const SlowWork slow(rank());
    wait_in(*group_, Collective::all_reduce, count);
  }

  /// Steps of a training program with several wrappers. Each has a group, as a wrapper with a group
  /// of its own, and buckets that are outstanding together.
  [[noreturn]] void train() {
    const int steps = 1 + hang_.before;
    for (int step = 0; step < steps; ++step) {
      const bool last = step + 1 == steps;
      std::vector<Work> outstanding;
      for (int wrapper = 0; wrapper < most_wrappers; ++wrapper) {
        if (last && wrapper + 1 == most_wrappers) break;
        for (std::uint16_t bucket = 0; bucket < 2; ++bucket) {
          outstanding.push_back(issue_bucket(wrapper, bucket));
        }
      }
      for (auto& work : outstanding) work.wait();
    }
    wait_in_wrapper(rank() == hang_.culprit ? 0 : most_wrappers - 1);
  }

  SourceScope scope(int wrapper, std::uint16_t bucket) {
    return SourceScope(*wrappers_[static_cast<std::size_t>(wrapper)],
                       {.owner = Source::Owner::distributed_optimizer,
                        .content = Source::Content::gradients,
                        .number = static_cast<std::uint16_t>(wrapper + 1),
                        .bucket = bucket});
  }

  Work issue_bucket(int wrapper, std::uint16_t bucket) {
    auto& group = *wrappers_[static_cast<std::size_t>(wrapper)];
    const auto of_wrapper = scope(wrapper, bucket);
    constexpr std::size_t count = 1000;
    const auto place = static_cast<std::size_t>(2 * wrapper + bucket) * count * sizeof(float);
    return group.all_reduce(input_.data() + place, count, DType::f32, ReduceOp::sum);
  }

  [[noreturn]] void wait_in_wrapper(int wrapper) {
    const auto of_wrapper = scope(wrapper, 0);
    wait_in(*wrappers_[static_cast<std::size_t>(wrapper)], Collective::all_reduce);
  }

  [[noreturn]] void messages() {
    const auto at = std::ranges::find(hang_.circle, rank());
    if (hang_.fault == Fault::silent_sender) {
      if (rank() == hang_.culprit) sleep_on();
      if (rank() == hang_.partner) receive(hang_.culprit);
    } else if (at != hang_.circle.end()) {
      receive(std::next(at) == hang_.circle.end() ? hang_.circle.front() : *std::next(at));
    }
    end();
  }

  [[noreturn]] void receive(int from) {
    say(concat("recv ", detail::rank_list(all())));
    world_->recv(output_.data(), 10, DType::f32, from).wait();
    end();
  }

  std::vector<int> all() const {
    std::vector<int> ranks;
    for (int one = 0; one < hang_.size; ++one) ranks.push_back(one);
    return ranks;
  }

  /// The end of a rank that takes no part in the hang: it waits in the world, or sleeps.
  [[noreturn]] void end() {
    if (hang_.nested) {
      say(concat("barrier ", detail::rank_list(all())));
      world_->barrier().wait();
    }
    sleep_on();
  }

  [[noreturn]] void fail() {
    say("none");
    if (hang_.fault == Fault::stops) ::raise(SIGSTOP);
    if (hang_.fault == Fault::dies) ::raise(SIGKILL);
    if (hang_.fault == Fault::spins) spin();
    sleep_on();
  }

  [[noreturn]] void sleep_on() {
    say("none");
    for (;;) ::pause();
  }

  [[noreturn]] static void spin() {
    for (std::atomic<long> i = 0;; ++i) {
    }
  }

  void say(const std::string& what) const {
    const auto path = folder_ / concat(rank());
    const auto part = path.string() + ".part";
    std::ofstream(part) << what << std::flush;
    std::filesystem::rename(part, path);
  }

  const Hang& hang_;
  std::shared_ptr<Communicator> world_, group_, second_;
  std::vector<std::shared_ptr<Communicator>> wrappers_;  ///< of Fault::skips_wrapper
  std::filesystem::path folder_;
  std::vector<std::byte> input_, output_;
};

}  // namespace

void run_rank(const Hang& hang, const std::shared_ptr<Communicator>& world,
              const std::filesystem::path& folder) {
  Rank(hang, world, folder).run();
}

}  // namespace lockstep::testing
