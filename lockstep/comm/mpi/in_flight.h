#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lockstep/comm/operation.h"
#include "lockstep/comm/work.h"

namespace lockstep::mpi {

class MpiCommunicator;

/// One operation of this rank between begin and completion.
class InFlight : public detail::Ticket {
 public:
  InFlight(MpiCommunicator& group, Operation&& operation);
  ~InFlight() override;

  /// Does what can be done without blocking.
  virtual void advance() = 0;
  /// World ranks that have not done what this operation waits for.
  virtual std::vector<int> missing() const = 0;

  bool complete() const { return complete_; }
  const Operation& operation() const { return operation_; }
  /// "all_reduce #17 (mpi) rank 2 of 4".
  std::string where() const;

  bool test() final;
  void wait() final;
  void abandon() noexcept final;

 protected:
  void set_complete() { complete_ = true; }
  MpiCommunicator& group() const { return *group_; }

 private:
  std::shared_ptr<MpiCommunicator> group_;
  Operation operation_;
  bool complete_ = false;
};

}  // namespace lockstep::mpi
