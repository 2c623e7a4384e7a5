#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "comm/announcement.h"
#include "comm/mpi/mpi_request.h"
#include "comm/mpi/transfer.h"
#include "comm/shape.h"

namespace lockstep::inline v0_2::mpi {

/// The bytes of an announcement, followed by the sender's short input or the receiver's part of it.
using Parcel = std::vector<std::byte>;

/// A collective on this rank. Note [How a collective over MPI runs] is in
/// mpi_collective_request.cpp.
class CollectiveRequest final : public MpiRequest {
 public:
  CollectiveRequest(MpiCommunicator& group, Operation&& operation);

  /// Announces it to the other members.
  void announce();
  /// The next collective may move its bytes: all messages of this one have begun.
  bool lets_next_begin() const;
  /// Takes what was announced, and finishes if that was all. Comes before advance().
  void meet();

  void advance() override;
  std::vector<int> missing() const override;

  /// Bytes that the longest parcel of a group of so many members has.
  static std::size_t parcel_bytes(int members);

 private:
  std::size_t parcel_payload(int member) const;
  void fill(std::byte* payload, std::size_t bytes, int member) const;
  bool agree();
  void finish_from_parcels();
  void finish_halves();
  const std::byte* from_parcel(int member) const;

  detail::Shape shape_;
  bool in_parcels_ = false;  ///< inputs are sent with the announcements
  bool agreed_ = false;
  std::vector<Parcel> sent_;  ///< to each member; the same for all is held once
  std::size_t sending_ = 0;
  std::vector<Parcel> received_;  ///< from each member; empty until it is here
  int absent_ = 0;                ///< members whose parcel is not here
  std::unique_ptr<Transfer> transfer_;
};

}  // namespace lockstep::mpi
