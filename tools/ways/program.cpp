// The ranks of tools/measure-size --ways: ways_program gradient|run|death
#include <dlfcn.h>
#include <lockstep/lockstep.h>
#include <torch/torch.h>

#include <chrono>
#include <csignal>
#include <string>
#include <thread>

namespace {

/// Calls a function of the preloaded recorder.
template <class... Arguments>
void tell(const char* name, Arguments... arguments) {
  if (void* const function = dlsym(RTLD_DEFAULT, name))
    reinterpret_cast<void (*)(Arguments...)>(function)(arguments...);
}

/// Long enough for the other rank to sleep until this one continues.
void be_late() { std::this_thread::sleep_for(std::chrono::milliseconds(300)); }

/// Records the backward of all steps but the first two, which plan the buckets.
void train(const lockstep::Group& world) {
  torch::manual_seed(0);
  torch::nn::Sequential model(torch::nn::Linear(256, 256), torch::nn::Tanh(),
                              torch::nn::Linear(256, 1));
  torch::optim::SGD sgd(model->parameters(), 0.1);
  lockstep::DistributedDataParallel ddp(model, world);
  for (int step = 0; step < 6; ++step) {
    sgd.zero_grad();
    const auto loss = ddp(torch::rand({8, 256})).square().mean();
    if (world.rank() == step % 2) be_late();
    tell("lockstep_ways_here", step >= 2);
    loss.backward();
    tell("lockstep_ways_here", false);
    sgd.step();
  }
}

/// Records everything from the moment at which rank 1 is killed.
void die(const lockstep::Group& world) {
  world.barrier().wait();
  if (world.rank() == 1) {
    be_late();
    tell("lockstep_ways_everywhere");
    std::raise(SIGKILL);
  }
  world.barrier().wait();
}

}  // namespace

int main(int argc, char** argv) {
  const std::string way = argc > 1 ? argv[1] : "";
  tell("lockstep_ways_here", way == "run");
  return lockstep::run_main(argc, argv, [&](const lockstep::Group& world) {
    tell("lockstep_ways_here", false);
    if (way == "gradient") train(world);
    if (way == "death") die(world);
  });
}
