// A small transformer that predicts the next character of a text: tied weights, gradients that two
// micro-batches accumulate, clipping, and a learning rate with warm-up and cosine decay.
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iomanip>
#include <iostream>
#include <numbers>
#include <string>
#include <vector>
#ifdef WITH_LOCKSTEP
#include <lockstep/lockstep.h>
#endif

namespace nn = torch::nn;

constexpr std::int64_t block_size = 32;
constexpr std::int64_t width = 48;
constexpr std::int64_t heads = 4;
constexpr std::int64_t micro_batch = 12;
constexpr int micro_batches = 2;
constexpr int steps = 150;

const std::string text =
    "the river leaves the lake in the north and turns to the west. in spring the river carries the "
    "snow of the hills, and the meadows near the village are under water. in summer the water is "
    "low, and the children of the village cross the river on the stones. in autumn the leaves of "
    "the "
    "trees float on the water to the mill. in winter the lake is under the ice, and the mill "
    "stands "
    "still. the people of the village know the river, and the river feeds the people of the "
    "village. ";

struct BlockImpl : nn::Module {
  BlockImpl() {
    register_module("norm1", norm1);
    register_module("norm2", norm2);
    register_module("qkv", qkv);
    register_module("projection", projection);
    register_module("up", up);
    register_module("down", down);
  }

  torch::Tensor forward(torch::Tensor x) {
    const auto shape = x.sizes().vec();  // batch, characters, width
    std::vector<torch::Tensor> parts;
    for (const auto& part : qkv(norm1(x)).chunk(3, 2))
      parts.push_back(part.view({shape[0], shape[1], heads, width / heads}).transpose(1, 2));
    const auto attention =
        at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0, true);
    x = x + projection(attention.transpose(1, 2).reshape(shape));
    return x + down(torch::gelu(up(norm2(x))));
  }

  nn::LayerNorm norm1{nn::LayerNormOptions({width})};
  nn::LayerNorm norm2{nn::LayerNormOptions({width})};
  nn::Linear qkv{width, 3 * width};
  nn::Linear projection{width, width};
  nn::Linear up{width, 4 * width};
  nn::Linear down{4 * width, width};
};
TORCH_MODULE(Block);

struct GptImpl : nn::Module {
  explicit GptImpl(std::int64_t characters) : token(characters, width) {
    register_module("token", token);
    register_module("position", position);
    register_module("blocks", blocks);
    register_module("norm", norm);
    const torch::NoGradGuard no_grad;
    token->weight.mul_(0.1);
  }

  /// The loss of predicting each target.
  torch::Tensor forward(const torch::Tensor& inputs, const torch::Tensor& targets) {
    auto x = token(inputs) + position(torch::arange(inputs.size(1)));
    x = norm(blocks->forward(x));
    const auto logits = nn::functional::linear(x, token->weight);  // the embedding's weight
    return nn::functional::cross_entropy(logits.flatten(0, 1), targets.flatten());
  }

  nn::Embedding token;
  nn::Embedding position{block_size, width};
  nn::Sequential blocks{Block(), Block()};
  nn::LayerNorm norm{nn::LayerNormOptions({width})};
};
TORCH_MODULE(Gpt);

double learning_rate(int step) {
  constexpr double highest = 3e-3;
  constexpr int warm_up = 10;
  if (step < warm_up) return highest * (step + 1) / warm_up;
  const double done = static_cast<double>(step - warm_up) / (steps - warm_up);
  return highest * (0.55 + 0.45 * std::cos(std::numbers::pi * done));
}

int main() {
#ifdef WITH_LOCKSTEP
  const auto world = lockstep::init();
#endif
  torch::manual_seed(0);
  std::string characters = text;
  std::ranges::sort(characters);
  characters.erase(std::unique(characters.begin(), characters.end()), characters.end());
  std::vector<std::int64_t> codes;
  for (const char c : text) codes.push_back(static_cast<std::int64_t>(characters.find(c)));
  const auto windows = torch::tensor(codes).unfold(0, block_size + 1, 1);

  Gpt gpt(static_cast<std::int64_t>(characters.size()));
  torch::optim::AdamW adamw(gpt->parameters(), torch::optim::AdamWOptions(1e-3).weight_decay(0.1));
#ifdef WITH_LOCKSTEP
  lockstep::DistributedDataParallel ddp(gpt, world);
#endif

  for (int step = 0; step < steps; ++step) {
    adamw.param_groups()[0].options().set_lr(learning_rate(step));
    adamw.zero_grad();
    double mean = 0;
    for (int micro = 1; micro <= micro_batches; ++micro) {
      auto batch = windows.index_select(0, torch::randint(windows.size(0), {micro_batch}));
#ifdef WITH_LOCKSTEP
      batch = batch.tensor_split(world.size())[world.rank()];
      std::optional<lockstep::NoSync> local;
      if (micro < micro_batches) local.emplace(ddp.no_sync());
#endif
      auto loss = gpt(batch.narrow(1, 0, block_size), batch.narrow(1, 1, block_size));
      (loss / micro_batches).backward();
      mean += loss.item<double>() / micro_batches;
    }
    nn::utils::clip_grad_norm_(gpt->parameters(), 1.0);
    adamw.step();
#ifdef WITH_LOCKSTEP
    mean = world.mean(mean);
    if (world.rank() != 0) continue;
#endif
    std::cout << "step " << step << " loss " << std::setprecision(9) << mean << std::endl;
  }
}
