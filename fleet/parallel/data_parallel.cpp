// SPDX-License-Identifier: Apache-2.0
#include "fleet/parallel/data_parallel.h"

#include <algorithm>
#include <cmath>

#include "fleet/core/allocation_tag.h"
#include "fleet/core/error.h"
#include "fleet/core/log.h"
#include "fleet/core/process/stop_request.h"
#include "fleet/core/seconds_since.h"
#include "fleet/core/text/format.h"
#include "fleet/core/xx_hash64.h"

namespace fleet {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kMiB = 1024.0 * 1024.0;
enum MetadataSlot { kWeight, kLoss, kMicroBatches, kStop, kSamples, kResized };

void check(const DataParallelOptions& options) {
  std::vector<std::string> problems;
  if (!(options.fuse_grad_size_in_MB > 0)) {
    problems.push_back(format("fuse_grad_size_in_MB is {}", options.fuse_grad_size_in_MB));
  }
  if (!(options.last_comm_group_size_MB > 0)) {
    problems.push_back(format("last_comm_group_size_MB is {}", options.last_comm_group_size_MB));
  }
  if (!problems.empty()) {
    throw UsageError::all("data_parallel", "bucket sizes must be above 0:", problems);
  }
}

std::string describe(const NamedTensor& item) {
  std::string sizes;
  for (const auto size : item.tensor.sizes())
    sizes += format("{}{}", sizes.empty() ? "" : "x", size);
  return format("{} {} [{}]{}", item.name, c10::toString(item.tensor.scalar_type()), sizes,
                item.tensor.requires_grad() ? "" : " frozen");
}

// Ranks whose models differ would add unrelated numbers, or hang; find out before anything is sent.
void check_same_model(comm::Communicator& comm, const std::vector<NamedTensor>& tensors) {
  auto own = torch::zeros({static_cast<int64_t>(tensors.size()) + 1}, torch::kLong);
  auto count = torch::tensor({static_cast<int64_t>(tensors.size())}, torch::kLong);
  const auto counts = comm.all_gather(count, "the number of parameters");
  auto ranks = comm.present();
  for (const int rank : ranks) {
    const int first = ranks.front();
    const auto a = counts[first].item<int64_t>();
    const auto b = counts[rank].item<int64_t>();
    if (a != b) {
      throw UsageError(
          "data_parallel",
          format("the models differ: rank {} has {} parameters and buffers, rank {} has {}", first,
                 a, rank, b),
          "build the same model on every rank");
    }
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    own[static_cast<int64_t>(i)] = static_cast<int64_t>(XxHash64::of(describe(tensors[i])) >> 1);
  }
  const auto hashes = comm.all_gather(own, "the names and shapes of parameters");
  ranks = comm.present();
  for (const int rank : ranks) {
    const int first = ranks.front();
    const auto differ = (hashes[first] != hashes[rank]).nonzero();
    if (differ.numel() == 0) continue;
    const auto& item = tensors[static_cast<size_t>(differ[0][0].item<int64_t>())];
    throw UsageError(
        "data_parallel",
        format("the models of rank {} and rank {} differ at '{}'; on rank {} it is {}", first, rank,
               item.name, comm.rank(), describe(item)),
        "build the same model on every rank: same names, shapes, types and frozen parameters");
  }
}

}  // namespace

std::vector<Bucket> plan_buckets(const ParameterArena& arena, const DataParallelOptions& options) {
  check(options);
  const auto spans = arena.spans();
  const auto bytes = [&](size_t i) {
    return static_cast<double>(spans[i].numel * spans[i].parameter.element_size());
  };
  // The first parameters of the model get their gradients last: what can be kept back for the small
  // last bucket, from the front of the last group.
  const size_t last_group_first = arena.groups().back().first_span;
  size_t tail_end = last_group_first;
  if (options.fuse_all_reduce_ops) {
    double tail = 0;
    while (tail_end < spans.size() &&
           tail + bytes(tail_end) <= options.last_comm_group_size_MB * kMiB) {
      tail += bytes(tail_end++);
    }
  }
  std::vector<Bucket> buckets;
  const auto add = [&](size_t span, bool fits) {
    if (!fits || buckets.empty() || buckets.back().group != spans[span].group) {
      Bucket bucket;
      bucket.group = spans[span].group;
      bucket.end = span + 1 < spans.size() && spans[span + 1].group == spans[span].group
                       ? spans[span + 1].offset
                       : arena.groups()[spans[span].group].values.numel();
      buckets.push_back(bucket);
    }
    buckets.back().begin = spans[span].offset;
    buckets.back().spans.push_back(span);
  };
  const auto add_group = [&](size_t first, size_t last, double limit) {
    double filled = limit + 1;  // the first span opens a bucket
    for (size_t i = last; i-- > first;) {
      const bool fits = options.fuse_all_reduce_ops && filled + bytes(i) <= limit;
      filled = fits ? filled + bytes(i) : bytes(i);
      add(i, fits);
    }
  };
  const double limit = options.fuse_grad_size_in_MB * kMiB;
  for (const auto& group : arena.groups()) {
    const bool is_last = &group == &arena.groups().back();
    const size_t first = is_last ? tail_end : group.first_span;
    add_group(first, group.last_span, limit);
    if (is_last) add_group(group.first_span, tail_end, options.last_comm_group_size_MB * kMiB);
  }
  return buckets;
}

DataParallel::DataParallel(ParameterArena& arena, std::shared_ptr<comm::Communicator> comm,
                           const DataParallelOptions& options)
    : arena_(arena), comm_(std::move(comm)), options_(options) {
  set_no_sync(false);
  buckets_ = plan_buckets(arena_, options_);
  bucket_of_span_.resize(arena_.spans().size());
  for (size_t b = 0; b < buckets_.size(); ++b) {
    for (const size_t span : buckets_[b].spans) bucket_of_span_[span] = b;
  }
  has_arrived_.resize(arena_.spans().size());
  const bool on_cpu = std::all_of(arena_.groups().begin(), arena_.groups().end(),
                                  [](const ArenaGroup& group) { return group.values.is_cpu(); });
  if (comm_->size() > 1 && on_cpu) {
    area_ = comm::SharedArea::make(comm_, arena_.gradient_bytes());
    if (area_) arena_.place_gradients(area_->data(), area_);
  }
  arena_.set_on_gradient_ready([this](size_t span) { on_gradient(span); });
  if (comm_->size() > 1) {
    log::info(
        "data_parallel",
        format("Find all_reduce operators: {}. To make the speed faster, some all_reduce ops are "
               "fused during training, after fusion, the number of all_reduce ops is {}.",
               arena_.spans().size(), buckets_.size()));
    log::info("data_parallel", area_
                                   ? "gradients lie in memory that the ranks of this machine share"
                                   : "gradients travel through the communicator");
  }
}

DataParallel::~DataParallel() { arena_.set_on_gradient_ready(nullptr); }

void DataParallel::broadcast(const ModelHandle& model) {
  if (comm_->size() == 1) return;
  const torch::NoGradGuard no_grad;
  auto tensors = model.parameters();
  const auto buffers = model.buffers();
  tensors.insert(tensors.end(), buffers.begin(), buffers.end());
  check_same_model(*comm_, tensors);
  for (const auto& group : arena_.groups()) comm_->broadcast(group.values, 0, "parameters");
  arena_.values_written();
  auto rest = arena_.frozen();
  rest.insert(rest.end(), buffers.begin(), buffers.end());
  for (const auto& [name, tensor] : rest) {
    // What has a type that does not travel (bool, int32) goes as int64.
    const bool travels = torch::isFloatingType(tensor.scalar_type());
    auto sent = tensor.detach().to(travels ? tensor.scalar_type() : torch::kLong).contiguous();
    comm_->broadcast(sent, 0, name);
    tensor.detach().copy_(sent);
  }
}

void DataParallel::arm(const Contribution& own) {
  own_ = own;
  next_ = 0;
  pending_.clear();
  halves_.assign(buckets_.size(), {});
  missing_.clear();
  for (const auto& bucket : buckets_) missing_.push_back(bucket.spans.size());
  has_arrived_.assign(has_arrived_.size(), false);
  is_armed_ = true;
}

void DataParallel::contribute_zeros(bool is_resized) {
  arm({.weight = 0, .micro_batches = 0, .is_resized = is_resized});
}

void DataParallel::on_gradient(size_t span) {
  if (!is_armed_ || has_arrived_[span]) return;
  has_arrived_[span] = true;
  --missing_[bucket_of_span_[span]];
  launch_ready();
}

void DataParallel::launch_ready() {
  if (no_sync_) return;
  while (next_ < buckets_.size() && missing_[next_] == 0) launch(next_++);
}

torch::Tensor DataParallel::bucket_tensor(size_t index) const {
  const auto& bucket = buckets_[index];
  return arena_.groups()[bucket.group].gradients.narrow(0, bucket.begin, bucket.end - bucket.begin);
}

bool DataParallel::has_metadata_slots() const { return arena_.metadata_slots() >= comm_->size(); }

void DataParallel::end_computing() {
  computed_seconds_ = computing_since_ ? seconds_since(*computing_since_) : 0;
  computing_since_.reset();
}

void DataParallel::fill_metadata() {
  auto metadata = arena_.metadata();
  const torch::NoGradGuard no_grad;
  auto own = torch::zeros({metadata.numel()});
  auto* const values = own.data_ptr<float>();
  values[kWeight] = static_cast<float>(own_.weight);
  values[kLoss] = static_cast<float>(own_.loss);
  values[kMicroBatches] = static_cast<float>(own_.micro_batches);
  // Not a number as soon as one rank's is not known.
  values[kSamples] = own_.samples ? static_cast<float>(*own_.samples) : NAN;
  values[kResized] = own_.is_resized ? 1 : 0;
  values[kStop] = stop_requested() ? 1 : 0;
  for (size_t i = 0; i < arena_.spans().size(); ++i) {
    values[ParameterArena::kMetadataScalars + static_cast<int64_t>(i)] =
        arena_.has_gradient(i) ? 1 : 0;
  }
  end_computing();
  if (has_metadata_slots())
    values[metadata.numel() - comm_->size() + comm_->rank()] = float(computed_seconds_);
  metadata.copy_(own);
}

void DataParallel::launch(size_t index) {
  const torch::NoGradGuard no_grad;
  const bool is_last = index + 1 == buckets_.size();
  const auto what = format("gradient bucket {} of {}", index + 1, buckets_.size());
  if (is_last) fill_metadata();
  const bool half = options_.fp16_allreduce && bucket_tensor(index).scalar_type() == torch::kFloat;
  const bool metadata_apart =
      half || arena_.groups()[buckets_[index].group].values.scalar_type() != torch::kFloat;
  if (is_last && metadata_apart) {
    pending_.push_back(sum(arena_.metadata(), "the update's metadata"));
  }
  torch::Tensor sent;
  if (half) {
    const AllocationTag tag(allocation::kCommunication);
    halves_[index] = bucket_tensor(index).to(torch::kHalf);
    sent = halves_[index];
  } else {
    sent = is_last && !metadata_apart ? arena_.metadata_and_gradients(buckets_[index].end)
                                      : bucket_tensor(index);
  }
  pending_.push_back(sum(sent, what));
}

comm::Work DataParallel::sum(const torch::Tensor& tensor, const std::string& what) {
  const auto dtype = tensor.scalar_type();
  if (area_ && (dtype == torch::kFloat || dtype == torch::kDouble)) {
    return area_->all_reduce_sum_async(tensor, what);
  }
  return comm_->all_reduce_async(tensor, comm::ReduceOp::kSum, what);
}

ReducedMetadata DataParallel::read_metadata() const {
  const auto metadata = arena_.metadata().to(torch::kCPU).contiguous();
  const auto* const values = metadata.data_ptr<float>();
  ReducedMetadata result;
  result.weight = values[kWeight];
  result.loss = values[kLoss];
  result.micro_batches = values[kMicroBatches];
  if (!std::isnan(values[kSamples])) result.samples = std::llround(values[kSamples]);
  result.is_resized = values[kResized] > 0;
  result.ranks = no_sync_ ? 1 : comm_->size();
  result.stop = values[kStop] > 0 && result.ranks == comm_->size();
  for (size_t i = 0; i < arena_.spans().size(); ++i) {
    result.used.push_back(values[ParameterArena::kMetadataScalars + static_cast<int64_t>(i)] > 0);
  }
  if (has_metadata_slots() && result.ranks > 1) {
    const auto* const seconds = values + metadata.numel() - comm_->size();
    const bool all_know =
        std::all_of(seconds, seconds + comm_->size(), [](float s) { return s > 0; });
    if (all_know) result.compute_seconds.assign(seconds, seconds + comm_->size());
  }
  return result;
}

ReducedMetadata DataParallel::wait() {
  FLEET_ASSERT(is_armed_, "wait() without arm()");
  is_armed_ = false;
  // A replaced gradient is this rank's error, but the others wait for its buckets: send first,
  // throw then.
  std::exception_ptr own_error;
  try {
    arena_.end_window();
  } catch (const Error&) {
    own_error = std::current_exception();
  }
  const auto begin = Clock::now();
  if (!no_sync_) {
    while (next_ < buckets_.size()) launch(next_++);
    for (auto& pending : pending_) pending.wait();
    const torch::NoGradGuard no_grad;
    for (size_t b = 0; b < halves_.size(); ++b) {
      if (halves_[b].defined()) bucket_tensor(b).copy_(halves_[b]);
    }
    halves_.clear();
  } else {
    fill_metadata();
  }
  pending_.clear();
  exposed_seconds_ = seconds_since(begin);
  if (own_error) std::rethrow_exception(own_error);

  auto metadata = read_metadata();
  if (!options_.find_unused_parameters && metadata.weight > 0) {
    std::vector<std::string> unused;
    for (size_t i = 0; i < metadata.used.size(); ++i) {
      if (!metadata.used[i]) unused.push_back(arena_.spans()[i].name);
    }
    if (!unused.empty()) {
      throw Error::all(
          "data_parallel",
          format("{} of {} parameters got no gradient on {}:", unused.size(), metadata.used.size(),
                 no_sync_ && comm_->size() > 1 ? format("rank {}", comm_->rank())
                                               : std::string("any rank")),
          unused,
          "leave them out of the model, freeze them, or set find_unused_parameters, which "
          "leaves them as they are");
    }
  }
  return metadata;
}

}  // namespace fleet
