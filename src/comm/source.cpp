#include "comm/source.h"

#include "core/text.h"

namespace lockstep::inline v0_2 {
namespace {

using detail::concat;

const char* name(Source::Owner owner) {
  switch (owner) {
    case Source::Owner::none:
      return "";
    case Source::Owner::distributed_data_parallel:
      return "DistributedDataParallel";
    case Source::Owner::distributed_optimizer:
      return "DistributedOptimizer";
  }
  return "unknown owner";
}

const char* name(Source::Content content) {
  switch (content) {
    case Source::Content::unspecified:
      return "";
    case Source::Content::gradients:
      return "the gradients";
    case Source::Content::parameters:
      return "the parameters";
    case Source::Content::buffers:
      return "the buffers";
    case Source::Content::step_agreement:
      return "the step agreement";
    case Source::Content::bucket_order:
      return "the bucket order";
    case Source::Content::participation:
      return "the participation flags";
    case Source::Content::weights:
      return "the weights";
    case Source::Content::model:
      return "the construction";
  }
  return "unknown content";
}

}  // namespace

std::string to_text(const Source& source) {
  std::string text;
  const auto add = [&](const std::string& part) {
    if (!part.empty()) text += (text.empty() ? "" : " of ") + part;
  };
  if (source.bucket >= 0) add(concat("bucket ", source.bucket));
  add(name(source.content));
  if (source.owner != Source::Owner::none) add(concat(name(source.owner), " #", source.number));
  return text;
}

}  // namespace lockstep
