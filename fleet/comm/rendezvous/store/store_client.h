// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include <c10/util/intrusive_ptr.h>

#include "fleet/comm/rendezvous/network_address.h"

namespace c10d {
class Store;
}

namespace fleet::comm {

class StoreServer;
class WaitNotice;

/// Addresses and key of a StoreServer.
struct StoreEndpoint {
  std::vector<NetworkAddress> addresses;
  std::string name;  // "node1:29500", for messages
  std::string key;
};

/// One connection to a StoreServer as a c10d store. Retries for up to `timeout`, which is also the
/// limit of later calls. An Error when the server does not answer, or has another key. `server` is
/// kept alive by the connection and its clones.
///
/// Any thread may call; a call that waits blocks the others. A wait that times out throws
/// c10::DistStoreError and leaves the connection usable; any other failure throws
/// c10::DistNetworkError and closes it.
c10::intrusive_ptr<c10d::Store> connect_to_store(StoreEndpoint peer,
                                                 std::chrono::milliseconds timeout,
                                                 WaitNotice* notice = nullptr,
                                                 std::shared_ptr<StoreServer> server = nullptr);

}  // namespace fleet::comm
