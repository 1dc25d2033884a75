// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "fleet/core/process/descriptor.h"

namespace fleet::comm {

/// Serves the table of a job to clients that prove to have the job's key (store_wire.h), in one
/// thread.
///
/// A client without the proof can neither read nor write: its connection is closed, after 30 s at
/// the latest, and a warning names its address, for every power of two of such connections.
/// Connections that are opened and closed without data, as by port scanners, are not logged.
///
///   StoreServer server(std::move(listening_socket), key);   // until it goes out of scope
class StoreServer {
 public:
  StoreServer(Descriptor listening_socket, std::string key);
  ~StoreServer();
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;

 private:
  class Loop;
  std::unique_ptr<Loop> loop_;
};

}  // namespace fleet::comm
