// A generative adversarial network: the generator learns to draw discs. Two models, two optimizers,
// and a step in which the discriminator sees the generator's images detached.
// With any argument, the program computes in float64.
#include <torch/torch.h>

#include <cstdint>
#include <iomanip>
#include <iostream>
#include <tuple>
#ifdef WITH_LOCKSTEP
#include <lockstep/lockstep.h>
#endif

namespace nn = torch::nn;

constexpr std::int64_t noise_size = 16;
constexpr std::int64_t global_batch = 24;
constexpr int steps = 100;

struct GeneratorImpl : nn::Module {
  GeneratorImpl() {
    layers->push_back(nn::ConvTranspose2d(options(noise_size, 32, 4)));
    layers->push_back(nn::BatchNorm2d(32));
    layers->push_back(nn::ReLU());
    layers->push_back(nn::ConvTranspose2d(options(32, 16, 4).stride(2).padding(1)));
    layers->push_back(nn::BatchNorm2d(16));
    layers->push_back(nn::ReLU());
    layers->push_back(nn::ConvTranspose2d(options(16, 1, 4).stride(2).padding(1)));
    layers->push_back(nn::Tanh());
    register_module("layers", layers);
  }

  static nn::ConvTranspose2dOptions options(std::int64_t in, std::int64_t out, std::int64_t size) {
    return nn::ConvTranspose2dOptions(in, out, size).bias(false);
  }
  torch::Tensor forward(const torch::Tensor& noise) { return layers->forward(noise); }

  nn::Sequential layers;
};
TORCH_MODULE(Generator);

struct DiscriminatorImpl : nn::Module {
  DiscriminatorImpl() {
    layers->push_back(nn::Conv2d(options(1, 16, 4).stride(2).padding(1)));
    layers->push_back(nn::LeakyReLU(nn::LeakyReLUOptions().negative_slope(0.2)));
    layers->push_back(nn::Conv2d(options(16, 32, 4).stride(2).padding(1)));
    layers->push_back(nn::BatchNorm2d(32));
    layers->push_back(nn::LeakyReLU(nn::LeakyReLUOptions().negative_slope(0.2)));
    layers->push_back(nn::Conv2d(options(32, 1, 4)));
    register_module("layers", layers);
  }

  static nn::Conv2dOptions options(std::int64_t in, std::int64_t out, std::int64_t size) {
    return nn::Conv2dOptions(in, out, size).bias(false);
  }
  torch::Tensor forward(const torch::Tensor& images) { return layers->forward(images).flatten(); }

  nn::Sequential layers;
};
TORCH_MODULE(Discriminator);

/// Images of 16 by 16 pixels in [-1, 1], each with one disc at a random place.
torch::Tensor discs(std::int64_t count) {
  const auto centre = torch::rand({count, 2, 1, 1}) * 6 + 5;
  const auto pixel = torch::arange(16);
  const auto square = (pixel.view({1, 16, 1}) - centre.select(1, 0)).pow(2) +
                      (pixel.view({1, 1, 16}) - centre.select(1, 1)).pow(2);
  return torch::tanh(12 - square).unsqueeze(1);
}

int main(int argc, char**) {
  if (argc > 1) torch::set_default_dtype(torch::scalarTypeToTypeMeta(torch::kDouble));
#ifdef WITH_LOCKSTEP
  const auto world = lockstep::init();
#endif
  torch::manual_seed(0);
  Generator generator;
  Discriminator discriminator;
  const auto betas = std::make_tuple(0.5, 0.999);
  torch::optim::Adam adam_g(generator->parameters(), torch::optim::AdamOptions(2e-3).betas(betas));
  torch::optim::Adam adam_d(discriminator->parameters(),
                            torch::optim::AdamOptions(1e-3).betas(betas));
#ifdef WITH_LOCKSTEP
  lockstep::convert_sync_batchnorm(*generator, world);
  lockstep::convert_sync_batchnorm(*discriminator, world);
  lockstep::DistributedDataParallel ddp_g(generator, world);
  lockstep::DistributedDataParallel ddp_d(discriminator, world);
#endif

  for (int step = 0; step < steps; ++step) {
    auto real = discs(global_batch);
    auto noise = torch::randn({global_batch, noise_size, 1, 1});
#ifdef WITH_LOCKSTEP
    real = real.tensor_split(world.size())[world.rank()];
    noise = noise.tensor_split(world.size())[world.rank()];
#endif
    const auto ones = torch::ones(real.size(0));
    const auto zeros = torch::zeros(real.size(0));

    adam_d.zero_grad();
    auto loss_real = torch::binary_cross_entropy_with_logits(discriminator(real), ones);
    loss_real.backward();
    auto fake = generator(noise);
    auto loss_fake = torch::binary_cross_entropy_with_logits(discriminator(fake.detach()), zeros);
    loss_fake.backward();
    adam_d.step();

    adam_g.zero_grad();
#ifdef WITH_LOCKSTEP
    const auto unused = ddp_d.no_sync();
#endif
    auto loss = torch::binary_cross_entropy_with_logits(discriminator(fake), ones);
    loss.backward();
    adam_g.step();

    auto mean_d = (loss_real + loss_fake).item<double>();
    auto mean_g = loss.item<double>();
#ifdef WITH_LOCKSTEP
    mean_d = world.mean(mean_d);
    mean_g = world.mean(mean_g);
    if (world.rank() != 0) continue;
#endif
    std::cout << "step " << step << std::setprecision(9) << " discriminator " << mean_d
              << " generator " << mean_g << std::endl;
  }
}
