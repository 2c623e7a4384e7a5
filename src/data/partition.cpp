#include "lockstep/partition.h"

#include <ATen/ops/empty.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <exception>
#include <string>
#include <string_view>

#include "comm/communicator.h"
#include "comm/first_error.h"
#include "core/failure.h"
#include "core/operation_error.h"
#include "core/text.h"
#include "data/check_shard.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2 {

IndexRange partition_contiguous(std::size_t size, ShardSpec shard) {
  detail::check_shard("partition_contiguous", shard);
  const std::size_t each = size / static_cast<std::size_t>(shard.ranks);
  const std::size_t first = each * static_cast<std::size_t>(shard.rank);
  return {.first = first, .last = first + each};
}

IndexRange partition_contiguous(std::size_t size, const Group& group) {
  return partition_contiguous(size, ShardSpec{.rank = group.rank(), .ranks = group.size()});
}

namespace detail {

std::size_t size_to_partition(std::optional<std::size_t> size) {
  if (!size)
    detail::throw_invalid(
        "partition_dataset",
        "got a dataset without a size, expected one whose size() returns a number");
  return *size;
}

std::vector<std::size_t> shift(c10::ArrayRef<std::size_t> indices, IndexRange range) {
  std::vector<std::size_t> shifted(indices.begin(), indices.end());
  for (std::size_t& index : shifted) {
    if (index >= range.size())
      detail::throw_invalid("DatasetPart", "got index ", index, ", expected one below ",
                            range.size());
    index += range.first;
  }
  return shifted;
}

}  // namespace detail

}  // namespace lockstep

namespace lockstep::inline v0_2::detail {

namespace {

using Example = torch::data::Example<>;

constexpr std::size_t max_dims = 8;

/// Dtype and sizes of a batch's tensor, in the form that rank 0 broadcasts.
struct Shape {
  std::int64_t dtype = 0;
  std::int64_t dims = 0;
  std::array<std::int64_t, max_dims> sizes{};

  std::int64_t rows() const { return sizes[0]; }
  at::ScalarType type() const { return static_cast<at::ScalarType>(dtype); }
  std::vector<std::int64_t> with_rows(std::int64_t rows) const {
    std::vector<std::int64_t> all(sizes.begin(), sizes.begin() + dims);
    all[0] = rows;
    return all;
  }
};

enum class Kind : std::int64_t { batch, end, failure };

/// The broadcast before each batch.
struct Announcement {
  Kind kind = Kind::end;
  std::int64_t error_length = 0;  ///< bytes of the error message of a failure
  Shape data = {};
  Shape target = {};
};

Shape shape_of(const at::Tensor& tensor, const char* name) {
  if (!tensor.defined() || tensor.dim() < 1 || tensor.dim() > static_cast<int>(max_dims))
    throw_invalid("scatter_from_rank0", "got ", name, " of ", tensor.defined() ? tensor.dim() : 0,
                  " dimensions, expected 1 to ", max_dims);
  Shape shape{
      .dtype = static_cast<std::int64_t>(tensor.scalar_type()), .dims = tensor.dim(), .sizes = {}};
  std::copy(tensor.sizes().begin(), tensor.sizes().end(), shape.sizes.begin());
  return shape;
}

Announcement announcement_of(const Example& batch) {
  Announcement announcement{.kind = Kind::batch,
                            .error_length = 0,
                            .data = shape_of(batch.data, "data"),
                            .target = shape_of(batch.target, "target")};
  if (announcement.data.rows() != announcement.target.rows())
    throw_invalid("scatter_from_rank0", "got ", announcement.data.rows(), " rows of data and ",
                  announcement.target.rows(), " of target, expected the same number");
  return announcement;
}

std::int64_t first_row(std::int64_t rows, int rank, int ranks) { return rows * rank / ranks; }

/// The rows of all ranks, each part as long as the longest one, because scatter needs parts of
/// equal size.
at::Tensor packed(const Shape& shape, const at::Tensor& whole, const Group& group) {
  const int ranks = group.size();
  const std::int64_t longest = (shape.rows() + ranks - 1) / ranks;
  at::Tensor all = group.empty(shape.with_rows(longest * ranks), shape.type());
  for (int rank = 0; rank < ranks; ++rank) {
    const std::int64_t first = first_row(shape.rows(), rank, ranks);
    const std::int64_t count = first_row(shape.rows(), rank + 1, ranks) - first;
    all.narrow(0, rank * longest, count).copy_(whole.narrow(0, first, count));
    all.narrow(0, rank * longest + count, longest - count).zero_();
  }
  return all;
}

/// Scatters the rows of one tensor from rank 0; wait() removes the padding.
class RowScatter {
 public:
  /// all: on rank 0, the packed rows; else undefined.
  RowScatter(const Shape& shape, const at::Tensor& all, const Group& group) : all_(all) {
    const int ranks = group.size();
    const std::int64_t longest = (shape.rows() + ranks - 1) / ranks;
    part_ = at::empty(shape.with_rows(longest), shape.type());
    own_ = first_row(shape.rows(), group.rank() + 1, ranks) -
           first_row(shape.rows(), group.rank(), ranks);
    work_ = group.scatter(bytes(part_), all_.defined() ? bytes(all_) : all_, 0);
  }

  at::Tensor wait() {
    work_.wait();
    return part_.narrow(0, 0, own_);
  }

 private:
  // Sent as bytes, because collectives support fewer dtypes than datasets have.
  static at::Tensor bytes(const at::Tensor& tensor) { return tensor.flatten().view(at::kByte); }

  at::Tensor all_;
  at::Tensor part_;
  std::int64_t own_;
  Work work_;
};

at::Tensor byte_tensor(std::size_t size) {
  return at::empty({static_cast<std::int64_t>(size)}, at::kByte);
}

}  // namespace

void refuse_no_loader() {
  throw_invalid("scatter_from_rank0", "got no loader on rank 0, expected one");
}

void ScatteredBatches::advance() {
  at::Tensor all_data;
  at::Tensor all_target;
  Announcement announcement;
  std::exception_ptr error;
  std::string text;
  if (group_.rank() == 0) {
    try {
      // Before the announcement, after which the other ranks expect the rows.
      if (const std::optional<Example> whole = source_()) {
        announcement = announcement_of(*whole);
        all_data = packed(announcement.data, whole->data, group_);
        all_target = packed(announcement.target, whole->target, group_);
      }
    } catch (...) {
      error = std::current_exception();
      text = current_error_text();
      announcement.kind = Kind::failure;
      announcement.error_length = static_cast<std::int64_t>(text.size());
    }
  }
  const at::Tensor message = byte_tensor(sizeof announcement);
  std::memcpy(message.mutable_data_ptr(), &announcement, sizeof announcement);
  or_own_error(error, [&] { group_.broadcast(message, 0).wait(); });
  std::memcpy(&announcement, message.const_data_ptr(), sizeof announcement);

  current_.reset();
  if (announcement.kind == Kind::failure) {
    const at::Tensor error_text = byte_tensor(static_cast<std::size_t>(announcement.error_length));
    if (error) std::memcpy(error_text.mutable_data_ptr(), text.data(), text.size());
    or_own_error(error, [&] { group_.broadcast(error_text, 0).wait(); });
    if (error) std::rethrow_exception(error);
    const std::string cause(static_cast<const char*>(error_text.const_data_ptr()),
                            error_text.nbytes());
    throw DataError(concat("rank 0: ", cause), {.rank = group_.communicator().world_rank(0),
                                                .operation = "scatter_from_rank0",
                                                .cause = cause,
                                                .cause_kind = ErrorKind::data});
  }
  if (announcement.kind == Kind::end) return;
  RowScatter data(announcement.data, all_data, group_);
  RowScatter target(announcement.target, all_target, group_);
  at::Tensor own_data = data.wait();
  current_.emplace(std::move(own_data), target.wait());
}

}  // namespace lockstep::detail
