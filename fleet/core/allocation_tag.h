// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace fleet {

/// Names what the calling thread allocates tensors for while it lives, in the accounts of a memory
/// budget: without a tag a tensor is counted for the op that made it. The innermost tag wins. Sets
/// one thread-local pointer, so that it costs nothing where nothing is counted.
///
///   const AllocationTag tag(allocation::kOptimizerState);
///   state = arena.make_state();
class AllocationTag {
 public:
  /// The text must live as long as the process: only its address is kept.
  explicit AllocationTag(const char* name) noexcept;
  ~AllocationTag();
  AllocationTag(const AllocationTag&) = delete;
  AllocationTag& operator=(const AllocationTag&) = delete;

  /// This thread's; null: none.
  static const char* current() noexcept;

 private:
  const char* previous_;
};

/// The tags of Fleet's own memory, as messages spell them.
namespace allocation {
inline constexpr const char* kParameters = "parameters";
inline constexpr const char* kGradients = "gradients";
inline constexpr const char* kOptimizerState = "optimizer state";
inline constexpr const char* kLocalSgd = "local SGD copies";
inline constexpr const char* kBufferBackup = "copies of buffers";
inline constexpr const char* kSnapshot = "snapshot buffers";
inline constexpr const char* kStaging = "offload staging";
inline constexpr const char* kFetched = "fetched from the offload file";
inline constexpr const char* kDiskMeasurement = "measuring the disk";
inline constexpr const char* kCommunication = "communication buffers";
inline constexpr const char* kData = "data";
inline constexpr const char* kProgram = "the program";  ///< neither tag nor op
}  // namespace allocation

}  // namespace fleet
