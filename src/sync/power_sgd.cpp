#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_qr.h>
#include <ATen/ops/mm.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>
#include <vector>

#include "averaging/average.h"
#include "core/text.h"
#include "lockstep/strategies.h"
#include "sync/bucket_layout.h"

namespace lockstep::inline v0_2 {
namespace {

/// The rows of a parameter's part of the bucket as a matrix: its outermost dimension.
std::int64_t rows_of(const detail::Layout::Part& part) {
  if (part.sizes.size() < 2 || part.numel == 0) return 1;
  const auto outermost = std::ranges::max_element(part.strides) - part.strides.begin();
  return part.sizes[static_cast<std::size_t>(outermost)];
}

class PowerSgdExchange final : public Exchange {
 public:
  PowerSgdExchange(const PowerSgd& recipe, const Bucket& bucket)
      : recipe_(recipe), layout_(bucket) {
    const auto& values = bucket.values();
    if (recipe.error_feedback) {
      residual_ = bucket.group().empty(values.sizes(), values.scalar_type()).zero_();
    }
    std::vector<Parameter> uncompressed;
    for (const auto& part : layout_.parts()) {
      const auto rows = rows_of(part);
      const auto columns = static_cast<std::int64_t>(part.numel) / rows;
      if ((rows + columns) * recipe.rank < rows * columns) {
        parameters_.push_back({&part, rows, columns, recipe.rank});
      } else {
        uncompressed.push_back({&part, rows, columns, columns});
      }
    }
    const auto matrices = parameters_.size();
    parameters_.insert(parameters_.end(), uncompressed.begin(), uncompressed.end());
    matrices_ = std::span(parameters_).first(matrices);
    uncompressed_ = std::span(parameters_).subspan(matrices);
    for (auto& matrix : matrices_) {
      matrix.q = at::empty({matrix.columns, recipe.rank}, values.options());
      randomize(matrix, 0);
    }
  }

  ExchangeTask exchange(std::int64_t step, Bucket& bucket, const Group& group) override {
    const auto& gradient = bucket.values();
    allocate_buffers(gradient.scalar_type(), group);
    encode_p(step, gradient, group);
    co_await group.all_reduce(p_buffer_, ReduceOp::avg);
    refuse_not_finite(group.communicator());
    encode_q(gradient);
    co_await group.all_reduce(q_buffer_, ReduceOp::avg);
    decode(gradient);
  }

  State state() const override {
    State state = layout_.split(residual_, "residual");
    for (const auto& matrix : matrices_) state.emplace(matrix.part->name + ".q", matrix.q);
    return state;
  }

  void load(const State& state) override {
    layout_.join(state, "residual", residual_);
    for (auto& matrix : matrices_) {
      matrix.q.copy_(detail::find(state, matrix.part->name, "q", matrix.q));
    }
  }

 private:
  /// A parameter that is compressed, or averaged whole because it is no matrix or a small one.
  struct Parameter {
    const detail::Layout::Part* part;
    std::int64_t rows;
    std::int64_t columns;
    std::int64_t width;      ///< of sent_p: rank, or columns without compression
    at::Tensor q = {};       ///< columns × rank, of the previous step
    at::Tensor sent_p = {};  ///< rows × width, in p_buffer_
    at::Tensor sent_q = {};  ///< columns × rank, in q_buffer_
  };

  static at::Tensor matrix_of(const at::Tensor& flat, const Parameter& parameter) {
    const auto offset = static_cast<std::int64_t>(parameter.part->offset);
    return flat.narrow(0, offset, parameter.rows * parameter.columns)
        .view({parameter.rows, parameter.columns});
  }

  /// The values that are compressed: gradient plus residual, or the gradient alone.
  const at::Tensor& source(const at::Tensor& gradient) const {
    return residual_.defined() ? residual_ : gradient;
  }

  /// Fills Q with normal random numbers: the same on every rank, others for each matrix and step.
  static void randomize(Parameter& matrix, std::int64_t step) {
    const auto seed = static_cast<std::uint64_t>(step) * 1'000'003 + matrix.part->offset + 1;
    // The numbers are the same on every device.
    auto numbers = at::empty(matrix.q.sizes(), matrix.q.options().device(at::kCPU));
    matrix.q.copy_(numbers.normal_(0, 1, at::make_generator<at::CPUGeneratorImpl>(seed)));
  }

  void allocate_buffers(at::ScalarType dtype, const Group& group) {
    if (p_buffer_.defined()) return;
    std::int64_t p_elements = group.size();
    std::int64_t q_elements = 0;
    for (const auto& parameter : parameters_) p_elements += parameter.rows * parameter.width;
    for (const auto& matrix : matrices_) q_elements += matrix.columns * matrix.width;
    p_buffer_ = group.empty({p_elements}, dtype);
    q_buffer_ = group.empty({q_elements}, dtype);

    const auto take = [](const at::Tensor& buffer, std::int64_t& offset, std::int64_t rows,
                         std::int64_t columns) {
      const auto first = std::exchange(offset, offset + rows * columns);
      return buffer.narrow(0, first, rows * columns).view({rows, columns});
    };
    std::int64_t offset_p = group.size();
    std::int64_t offset_q = 0;
    for (auto& each : parameters_) each.sent_p = take(p_buffer_, offset_p, each.rows, each.width);
    for (auto& each : matrices_) each.sent_q = take(q_buffer_, offset_q, each.columns, each.width);
  }

  void encode_p(std::int64_t step, const at::Tensor& gradient, const Group& group) {
    if (residual_.defined()) residual_.add_(gradient);
    for (auto& matrix : matrices_) {
      if (!recipe_.warm_start) randomize(matrix, step);
      matrix.q.copy_(orthogonal(matrix.q));
      at::mm_out(matrix.sent_p, matrix_of(source(gradient), matrix), matrix.q);
    }
    for (auto& each : uncompressed_) each.sent_p.copy_(matrix_of(source(gradient), each));
    // Each rank has one element at the front for its result of first_not_finite().
    p_buffer_.narrow(0, 0, group.size()).zero_();
    if (p_buffer_.is_cpu()) p_buffer_[group.rank()].fill_(first_not_finite());
  }

  /// An orthonormal basis of the space that the columns span.
  static at::Tensor orthogonal(const at::Tensor& factor) {
    return std::get<0>(at::linalg_qr(factor, "reduced"));
  }

  /// 1 + the index of the first parameter with a number that is not finite, or 0. Matrices come
  /// before uncompressed parameters. P of a matrix is not finite if the matrix is not.
  std::int64_t first_not_finite() const {
    const auto found = std::ranges::find_if(
        parameters_, [](const Parameter& each) { return !detail::is_finite(each.sent_p); });
    return found == parameters_.end() ? 0 : 1 + (found - parameters_.begin());
  }

  void refuse_not_finite(const Communicator& group) {
    if (!p_buffer_.is_cpu()) return;  // to read a device's memory, every step would wait for it
    for (int rank = 0; rank < group.size(); ++rank) {
      const auto reported = std::lround(p_buffer_[rank].item<double>() * group.size());
      if (reported == 0) continue;
      // Otherwise the rejected gradient would be sent at the next step.
      if (residual_.defined()) residual_.nan_to_num_(0, 0, 0);
      const auto& name = parameters_[static_cast<std::size_t>(reported - 1)].part->name;
      averaging::refuse_not_finite("power_sgd", detail::concat("parameter ", name), rank, group);
    }
  }

  void encode_q(const at::Tensor& gradient) {
    for (auto& matrix : matrices_) {
      matrix.sent_p.copy_(orthogonal(matrix.sent_p));
      at::mm_out(matrix.sent_q, matrix_of(source(gradient), matrix).t(), matrix.sent_p);
    }
  }

  void decode(const at::Tensor& gradient) {
    for (auto& matrix : matrices_) {
      matrix.q.copy_(matrix.sent_q);
      auto result = matrix_of(gradient, matrix);
      at::mm_out(result, matrix.sent_p, matrix.sent_q.t());
      if (residual_.defined()) matrix_of(residual_, matrix).sub_(result);
    }
    for (auto& parameter : uncompressed_) {
      matrix_of(gradient, parameter).copy_(parameter.sent_p);
      if (residual_.defined()) matrix_of(residual_, parameter).zero_();
    }
    if (!q_buffer_.is_cpu() || detail::is_finite(q_buffer_)) return;
    // The gradient was too large for the factors. They would spoil all later steps.
    for (auto& matrix : matrices_) randomize(matrix, 0);
    if (residual_.defined()) residual_.nan_to_num_(0, 0, 0);
  }

  PowerSgd recipe_;
  detail::Layout layout_;
  std::vector<Parameter> parameters_;  ///< matrices first
  std::span<Parameter> matrices_;
  std::span<Parameter> uncompressed_;
  at::Tensor residual_;  ///< flat, in the order of the bucket; undefined without error feedback
  at::Tensor p_buffer_;  ///< one element per rank, all P, uncompressed parameters
  at::Tensor q_buffer_;  ///< all Q
};

}  // namespace

std::unique_ptr<Exchange> PowerSgd::exchange(const Bucket& bucket) const {
  check();
  averaging::expect_dtype("power_sgd", detail::averaged(bucket), {DType::f32, DType::f64});
  return std::make_unique<PowerSgdExchange>(*this, bucket);
}

}  // namespace lockstep
