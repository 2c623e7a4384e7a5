#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <span>
#include <string>
#include <vector>

#include "comm/operation.h"
#include "lockstep/exchange.h"
#include "lockstep/group.h"
#include "lockstep/model_view.h"
#include "lockstep/work.h"

namespace lockstep::inline v0_2::detail {

/// Averages the sparse gradients of a replicated model, such as those of Embedding(sparse=true).
/// Every strategy averages them exactly. A parameter's gradient consists of the indices of some of
/// its rows, and their values. The ranks gather both, and each rank adds rows of equal index and
/// divides by the number of ranks. Two rounds of collectives for all parameters: the numbers of
/// rows, then the rows.
class SparseGradients {
 public:
  /// parameters: the same on every rank. first_bucket: bucket number of the first parameter in
  /// what ranks compare before data moves; the next parameters follow.
  SparseGradients(std::vector<NamedTensor> parameters, const Group& group, const Source& owner,
                  std::size_t first_bucket);

  std::size_t size() const { return members_.size(); }
  /// The parameter as a slice. Its values are the mean of the last exchange, undefined before.
  Bucket::Slice& slice(std::size_t index) { return members_[index].slice; }
  /// A checksum of the parameter's rows that the last exchange averaged, for the consistency check.
  std::uint64_t checksum_of_rows(std::size_t index) const;
  const std::string& name_of(std::size_t index) const { return members_[index].slice.name; }

  /// Sets this rank's contribution to the next exchange: factor times the gradient. An undefined
  /// gradient has no rows. Returns the values of the rows; undefined if there are none.
  const at::Tensor& contribute(std::size_t index, const at::Tensor& gradient, double factor);

  /// Begins to exchange the numbers of rows. Ranks: all of the group, after all contributions.
  void begin();
  /// Completes the exchange. changed: for each parameter, whether some rank has changed its
  /// gradient; the others are not exchanged. Their slices' values become the means. Returns an
  /// InvalidArgument, the same on every rank, or null. It is for gradients that are not sparse; the
  /// flags of their parameters are cleared.
  /// Ranks: all of the group, with the same flags.
  std::exception_ptr complete(std::span<std::uint8_t> changed);

 private:
  struct Member {
    Bucket::Slice slice;
    at::Tensor averaged_rows = {};  ///< indices of the last mean
    at::Tensor indices = {};        ///< this rank's contribution; undefined for one without rows
    at::Tensor values = {};
    at::Tensor all_indices = {};  ///< of all ranks, during an exchange
    at::Tensor all_values = {};
  };

  std::int64_t rows_of(int rank, std::size_t index) const;
  void gather(std::size_t index, std::vector<Work>& works);
  void average(Member& member) const;

  Group group_;
  Source owner_;
  std::size_t first_bucket_;
  std::vector<Member> members_;
  at::Tensor own_rows_;  ///< number of rows of each parameter, or is_not_sparse
  at::Tensor all_rows_;  ///< the same of every rank
  Work work_;
};

}  // namespace lockstep::detail
