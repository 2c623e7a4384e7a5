#pragma once

// The variables that samples of README.md and docs/ may use without declaring them. They are not
// defined: the compiler checks functions that are never called, and emits no code for them.

#include <lockstep/lockstep.h>
#include <torch/torch.h>

#include <cmath>
#include <cstdint>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

using torch::nn::functional::cross_entropy;

extern const lockstep::Group world;
extern torch::nn::Sequential model;
extern torch::optim::SGD sgd;
extern lockstep::Mnist data;
extern lockstep::DistributedSampler sampler;
extern decltype(torch::data::make_data_loader(data, sampler, 64)) loader;
extern lockstep::DistributedDataParallel<torch::nn::SequentialImpl> ddp;
extern lockstep::LearningRate rate;
extern lockstep::Checkpoint checkpoint;
extern lockstep::CheckpointFolder folder;
extern at::Tensor tensor;
extern std::int64_t epoch;
extern std::int64_t step;
extern double accuracy;
