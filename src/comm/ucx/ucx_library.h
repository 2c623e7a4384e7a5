#pragma once

#include <ucp/api/ucp.h>

#include <vector>

namespace lockstep::inline v0_2::ucx {

/// The functions of UCX that are called, of libucp.so.0.
class Library {
 public:
  /// Loads it at the first call.
  /// Throws: BackendUnavailable if it cannot be loaded, or is too old.
  static const Library& get();

 private:
  struct Symbol {
    void* address;
    template <class Function>
    operator Function*() const {  // NOLINT(google-explicit-constructor)
      return reinterpret_cast<Function*>(address);
    }
  };

  static void* load();
  Symbol find(const char* name) const;

  void* library_ = load();

 public:
  decltype(&::ucp_init_version) init_version = find("ucp_init_version");
  decltype(&::ucp_cleanup) cleanup = find("ucp_cleanup");
  decltype(&::ucp_worker_create) worker_create = find("ucp_worker_create");
  decltype(&::ucp_worker_destroy) worker_destroy = find("ucp_worker_destroy");
  decltype(&::ucp_worker_query) worker_query = find("ucp_worker_query");
  decltype(&::ucp_worker_release_address) release_address = find("ucp_worker_release_address");
  decltype(&::ucp_worker_get_efd) worker_get_efd = find("ucp_worker_get_efd");
  decltype(&::ucp_worker_arm) worker_arm = find("ucp_worker_arm");
  decltype(&::ucp_worker_progress) worker_progress = find("ucp_worker_progress");
  decltype(&::ucp_ep_create) ep_create = find("ucp_ep_create");
  decltype(&::ucp_ep_close_nbx) ep_close = find("ucp_ep_close_nbx");
  decltype(&::ucp_tag_send_nbx) tag_send = find("ucp_tag_send_nbx");
  decltype(&::ucp_tag_recv_nbx) tag_recv = find("ucp_tag_recv_nbx");
  decltype(&::ucp_request_check_status) check_status = find("ucp_request_check_status");
  decltype(&::ucp_request_cancel) request_cancel = find("ucp_request_cancel");
  decltype(&::ucp_request_free) request_free = find("ucp_request_free");
  decltype(&::ucs_status_string) status_text = find("ucs_status_string");
};

/// UCX reads its settings from the environment when it is loaded and when a worker is made. In the
/// scope of this object those that the user has not set are here. They leave signals and mmap as
/// they are, and the end of a silent rank to the heartbeat.
class Settings {
 public:
  Settings();
  ~Settings();
  Settings(const Settings&) = delete;
  Settings& operator=(const Settings&) = delete;

 private:
  std::vector<const char*> set_;
};

}  // namespace lockstep::ucx
