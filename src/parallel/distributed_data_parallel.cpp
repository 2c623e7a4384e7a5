#include "lockstep/distributed_data_parallel.h"

#include "parallel/reducer.h"
#include "parallel/replicated_model.h"

namespace lockstep::inline v0_2::detail {

DataParallelModel::DataParallelModel(ModelView model, const Group& group,
                                     const DataParallelOptions& options)
    : model_(std::make_shared<ReplicatedModel>(std::move(model), group, options,
                                               Source::Owner::distributed_data_parallel)) {}

std::shared_ptr<ForwardGraph> DataParallelModel::begin_forward() const {
  return model_->begin_forward();
}

void DataParallelModel::write_buffers() const { model_->reducer().buffers().prepare_forward(); }

void DataParallelModel::watch(const at::Tensor& output,
                              const std::shared_ptr<ForwardGraph>& graph) const {
  model_->watch(output, graph);
}

void DataParallelModel::refuse_output(const std::type_info& type) const {
  model_->refuse_output(type);
}

NoSync DataParallelModel::no_sync() const { return model_->no_sync(); }

void DataParallelModel::set_weight(double samples) const { model_->reducer().set_weight(samples); }

State DataParallelModel::state() const { return model_->reducer().state(); }

void DataParallelModel::load_state(const State& state) const { model_->reducer().load(state); }

}  // namespace lockstep::detail
