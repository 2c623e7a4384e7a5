#pragma once

#include <concepts>
#include <functional>
#include <type_traits>

#include "lockstep/sync/exchange.h"

namespace lockstep {

/// Refers to anything that can give its state and take it back: wrappers, samplers, what a program
/// makes itself. Empty, it refers to nothing. Must not outlive what it refers to.
class Stateful {
 public:
  Stateful() = default;

  template <class T>
  requires(!std::same_as<std::remove_const_t<T>, Stateful> &&
           requires(T & object, const State& state) {
             { object.state() } -> std::convertible_to<State>;
             object.load_state(state);
           }) Stateful(T& object)  // NOLINT(google-explicit-constructor): it is a reference
      : state_([&object] { return State(object.state()); }),
        load_([&object](const State& state) { object.load_state(state); }) {
    if constexpr (requires { object.replicas_may_differ(); }) {
      replicas_may_differ_ = object.replicas_may_differ();
    }
  }

  explicit operator bool() const { return state_ != nullptr; }
  State state() const { return state_ ? state_() : State(); }
  void load_state(const State& state) const { load_(state); }
  /// Of a wrapper: whether what the optimizer remembers is each rank's own.
  bool replicas_may_differ() const { return replicas_may_differ_; }

 private:
  std::function<State()> state_;
  std::function<void(const State&)> load_;
  bool replicas_may_differ_ = false;
};

}  // namespace lockstep
