// SPDX-License-Identifier: Apache-2.0
#define FMT_HEADER_ONLY 1
#define USE_C10D_GLOO 1
#include "fleet/comm/transport/backend.h"

#include <dlfcn.h>

#include <csignal>

#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "fleet/comm/communicator.h"
#include "fleet/comm/rendezvous/store/store.h"
#include "fleet/comm/transport/nccl_plugin.h"
#include "fleet/core/error.h"
#include "fleet/core/text/format.h"

namespace fleet::comm {
namespace {

c10::intrusive_ptr<c10d::Backend> make_gloo(const Store& store, int rank, int size,
                                            const CommunicatorOptions& options) {
  auto gloo = c10d::ProcessGroupGloo::Options::create(options.timeout);
  const auto address = options.address.empty() ? std::string("127.0.0.1") : options.address;
  gloo->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(address));
  gloo->threads = 2;
  return c10::make_intrusive<c10d::ProcessGroupGloo>(store.raw(), rank, size, gloo);
}

// A plug-in, because a program that links libtorch_cuda.so starts only where CUDA is installed.
c10::intrusive_ptr<c10d::Backend> make_nccl(const Store& store, int rank, int size,
                                            const CommunicatorOptions& options) {
  void* library = ::dlopen("libfleet_nccl.so", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    throw UsageError("comm", format("the NCCL backend cannot be loaded: {}", ::dlerror()),
                     "build Fleet where a CUDA toolkit is (FLEET_NCCL=ON) against a full CUDA "
                     "LibTorch, or use the gloo backend");
  }
  auto* const make = reinterpret_cast<NcclPluginMake>(::dlsym(library, kNcclPluginSymbol));
  FLEET_ASSERT(make != nullptr, "libfleet_nccl.so without its entry");
  try {
    return make(store.raw(), rank, size, options.timeout);
  } catch (const c10::Error& error) {
    // It connects with the first collective, so the cause is this machine: no GPU, for example.
    throw Error(
        "comm", format("the NCCL backend cannot start: {}", error.what_without_backtrace()),
        "start it where every rank has a GPU that nvidia-smi shows, or use the gloo backend");
  }
}

// Gloo writes to sockets without MSG_NOSIGNAL: SIGPIPE from the connection of a lost peer would end
// this process before it can report that peer. A program's own handler stays.
void ignore_broken_pipes() {
  struct sigaction now {};
  ::sigaction(SIGPIPE, nullptr, &now);
  if (now.sa_handler == SIG_DFL) ::signal(SIGPIPE, SIG_IGN);
}

}  // namespace

void check_backend(const std::string& name) {
  if (name == "gloo" || name == "nccl") return;
  throw UsageError("comm", format("there is no backend '{}'", name), "use gloo or nccl");
}

c10::intrusive_ptr<c10d::Backend> make_backend(const Store& store, int rank, int size,
                                               const CommunicatorOptions& options) {
  check_backend(options.backend);
  ignore_broken_pipes();
  try {
    return options.backend == "nccl" ? make_nccl(store, rank, size, options)
                                     : make_gloo(store, rank, size, options);
  } catch (const c10::Error& error) {
    throw Error(
        "comm",
        format("rank {} could not connect to {} (limit {:.0f} s): {}", rank,
               size == 2 ? "its peer" : format("its {} peers", size - 1),
               static_cast<double>(options.timeout.count()) / 1e3, error.what_without_backtrace()),
        "see whether every rank was started and can reach the others' addresses");
  }
}

}  // namespace fleet::comm
