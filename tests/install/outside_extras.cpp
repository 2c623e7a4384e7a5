#include <ATen/ops/zeros.h>
#include <lockstep/lockstep.h>

#include <filesystem>
#include <iostream>
#include <vector>

/// Links the readers of images and compressed files, recompute() and a fused optimizer.
int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: outside_extras FOLDER\n";
    return 2;
  }
  const lockstep::Mnist digits{std::filesystem::path(argv[1])};
  auto weight = at::zeros({3}).set_requires_grad(true);
  lockstep::recompute([](const at::Tensor& x) { return x.exp(); }, weight).sum().backward();
  lockstep::FusedSgd sgd(std::vector<at::Tensor>{weight}, torch::optim::SGDOptions(1));
  lockstep::LearningRate rate(sgd, lockstep::CosineDecay{.steps = 10});
  sgd.step();
  rate.step();
  if (weight.sum().item<double>() != -3) {
    std::cerr << "got " << weight << ", expected -1 three times\n";
    return 1;
  }
  try {
    lockstep::ImageFolder images(argv[1], {.size = 8});
  } catch (const lockstep::Error&) {
    std::cout << "read " << digits.size().value() << " digits\n";
  }
}
