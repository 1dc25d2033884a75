// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <torch/types.h>

#include "fleet/core/torch/interception.h"

namespace fleet {

/// Of FastOps.
struct FastOpsOptions {
  /// LibTorch's names of ops that are not to be replaced: "layer_norm".
  std::vector<std::string> exclude = {};
};

/// Replaces ops of LibTorch by Fleet's own as an unmodified program calls them, and counts what it
/// replaced: dropout, scaled_dot_product_attention, gelu, layer_norm, rms_norm,
/// cross_entropy_loss, linear, addmm, bmm, matmul. A call that Fleet's kernels do not take (another
/// type, device, layout or kind of mask) goes to LibTorch. Results are LibTorch's to rounding;
/// random numbers are Fleet's (ops::RandomScope), so that masks are others than LibTorch's.
///
/// Not thread-safe: for one thread at a time.
///
///   FastOps fast;
///   {
///     const FastOpsScope scope(fast);
///     loss = net->forward(x);
///   }
///   loss.backward();
///   log::info("fast_ops", fast.summary());
class FastOps {
 public:
  /// Throws for a name in `exclude` that is none of `op_names`.
  explicit FastOps(const FastOpsOptions& options = {});

  /// What it can replace, by LibTorch's names.
  static std::vector<std::string> op_names();

  /// Calls of one op.
  struct Count {
    std::string op;
    int64_t replaced = 0;
    int64_t kept = 0;      ///< calls that went to LibTorch,
    std::string why = {};  ///< the last of them because of its type, device, layout, ...
  };
  /// Of the ops that were called inside its scopes.
  std::vector<Count> counts() const;
  /// "36 dropout, 12 gelu by Fleet's ops; 1 dropout by LibTorch's (type)".
  std::string summary() const;

 private:
  friend class FastOpsScope;
  friend struct FastOpsAccess;

  static constexpr size_t kOps = 10;
  struct Entry {
    bool is_excluded = false;
    int64_t replaced = 0;
    int64_t kept = 0;
    const char* why = "";
  };
  std::array<Entry, kOps> entries_;
  // The mask that was converted last: the layers of a net share one.
  torch::Tensor mask_, bias_;
  int64_t mask_version_ = 0;
};

/// Ops that this thread calls while it lives are replaced where gradients are on; not those of a
/// backward, nor inside saved-tensor hooks of the user's own, whose checkpointing would run the
/// forward again outside of this scope.
class FastOpsScope {
 public:
  explicit FastOpsScope(FastOps& ops) : FastOpsScope(&ops) {}
  /// Null: does nothing.
  explicit FastOpsScope(FastOps* ops);
  ~FastOpsScope();
  FastOpsScope(const FastOpsScope&) = delete;
  FastOpsScope& operator=(const FastOpsScope&) = delete;

 private:
  FastOps* ops_;
  FastOps* outer_ = nullptr;
  int outer_backward_ = -1;
  std::optional<compat::InterceptScope> intercept_;
};

}  // namespace fleet
