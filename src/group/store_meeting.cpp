#include "group/store_meeting.h"

#include <chrono>
#include <cstring>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>
#include <vector>

#include "core/environment.h"
#include "core/text.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::detail {
namespace {

/// Runs a call of the store.
/// Throws: CommError with the store's text.
template <class Call>
auto of_store(const Call& call) {
  try {
    return call();
  } catch (const c10::Error& error) {
    throw CommError(concat("PyTorch's store: ", error.what_without_backtrace()));
  } catch (const std::exception& error) {
    throw CommError(concat("PyTorch's store: ", error.what()));
  }
}

}  // namespace

tcp::Meeting meet_by_store(c10::intrusive_ptr<c10d::Store> store, const std::string& key, int rank,
                           int size) {
  const auto publish = [store, key](const control::Offer& offer) {
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(&offer);
    of_store([&] { store->set(key, std::vector<std::uint8_t>(bytes, bytes + sizeof offer)); });
  };
  const auto find = [store, key] {
    if (!of_store([&] { return store->check({key}); })) {
      throw CommError(concat("rank 0 has not written '", key, "' into PyTorch's store yet"));
    }
    const auto bytes = of_store([&] { return store->get(key); });
    control::Offer offer;
    if (bytes.size() != sizeof offer) {
      throw CommError(concat("'", key, "' in PyTorch's store has ", bytes.size(),
                             " bytes, expected ", sizeof offer,
                             ": the ranks run different versions of Lockstep"));
    }
    std::memcpy(static_cast<void*>(&offer), bytes.data(), sizeof offer);
    offer.listening = false;  // that of an earlier world may be replaced
    return offer;
  };
  return {.rank = rank, .size = size, .publish = publish, .find = find};
}

tcp::Meeting meet_by_store_of_torchrun(const Launcher& launcher) {
  const auto host = variable("MASTER_ADDR");
  const auto port = integer_variable("MASTER_PORT", 1);
  if (!host || !port || *port > 65535) {
    throw InvalidArgument(
        "init: torchrun on several hosts sets MASTER_ADDR and MASTER_PORT, and one of them is "
        "missing");
  }
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(*port);
  // The agent's store, or else one that rank 0 has until its process ends.
  options.isServer = variable("TORCHELASTIC_USE_AGENT_STORE") != "True" && launcher.rank == 0;
  options.waitWorkers = false;
  options.timeout = Environment::get().timeout;
  static c10::intrusive_ptr<c10d::Store> store;
  store =
      of_store([&] { return c10::make_intrusive<c10d::TCPStore>(std::string(*host), options); });
  const auto key = concat("lockstep/", variable("TORCHELASTIC_RUN_ID").value_or(""), "/0");
  return meet_by_store(store, key, launcher.rank, launcher.size);
}

}  // namespace lockstep::detail
