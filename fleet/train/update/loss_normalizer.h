// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include <torch/types.h>

#include "fleet/comm/communicator.h"
#include "fleet/core/parameter_arena.h"
#include "fleet/train/loss.h"

namespace fleet {

/// What a closure returned for one micro-batch, checked and read.
struct MicroBatchLoss {
  struct Term {
    torch::Tensor value;
    double to_sum = 1;  // `value` times this is the sum over what it is averaged over
    double weight = 0;
    double sum = 0;
  };
  std::vector<Term> terms;
  // Of the micro-batch in reports, and in an average of local SGD: with several terms its samples,
  // or, where nobody knows them, the largest weight of a term.
  double weight = 0;

  /// The terms' means over this micro-batch alone, added up.
  double mean() const;
};

/// `mean_weight`: the weight of a mean; `samples`: of the micro-batch, 0 when nobody knows.
MicroBatchLoss read_loss(const Loss& loss, double mean_weight, int64_t samples);

/// Divides the losses of an update by their weights, so that any number of micro-batches and ranks
/// gives the gradient of one batch.
///
/// A loss of one term is divided by a loss normalizer, the usual weight of an update, agreed on
/// once. Where an update has another weight the optimizer multiplies by `correction` as it reads
/// the gradients. So weights travel with the gradients, and nobody waits for them.
///
/// Several terms with weights of their own cannot be corrected afterwards. Their totals are summed
/// over the ranks before the first backward, one small collective per update. Where a window's
/// later micro-batches are not known yet, the gradients of each term are kept by themselves until
/// the last one, at the price of a backward and a copy of the gradients for each.
///
/// All ranks make the same collectives: one per update when there are several terms, and one more
/// in the first update.
///
///   normalizer.open({}, /*is_local=*/false);
///   for (...) { normalizer.add(loss, is_last, micro_batches);
///               if (normalizer.must_defer()) normalizer.defer(loss, scale);
///               else normalizer.scaled(loss, scale).backward(); }
class LossNormalizer {
 public:
  LossNormalizer(ParameterArena& arena, std::shared_ptr<comm::Communicator> comm);
  ~LossNormalizer();

  /// Before the first forward of an update. `totals`: the weights of the terms over all of this
  /// rank's micro-batches, if the batch gives them. `is_local`: no other rank takes part.
  void open(std::vector<double> totals, bool is_local);
  /// A call failed and may be retried: forgets its losses, but not what ranks have agreed on.
  void drop();

  /// After a forward. `count`: micro-batches that the window will have.
  void add(const MicroBatchLoss& loss, bool is_last, int64_t count);
  bool must_defer() const { return terms_ > 1 && !totals_; }
  /// A backward per term, times `scale`.
  void defer(const MicroBatchLoss& loss, double scale);
  /// The scalar for backward, times `scale`.
  torch::Tensor scaled(const MicroBatchLoss& loss, double scale) const;
  /// All micro-batches of the window have been added, and gradients may be sent from now on: brings
  /// the deferred gradients into the arena.
  void complete();
  /// This rank has no samples in this update, but takes part in what the others agree on.
  void contribute_zeros();

  double weight() const { return weight_; }
  /// To be summed over the ranks.
  double loss_sum() const;
  /// From the sums over the ranks: the loss of the update, and the factor of its gradients.
  double mean_loss(double loss_sum, double weight) const;
  double correction(double weight) const { return terms_ > 1 ? 1 : loss_normalizer_ / weight; }

  /// What ranks have agreed on once; a loss normalizer of 0: nothing yet.
  struct Agreed {
    double loss_normalizer = 0;
    int64_t terms = 0;
  };
  Agreed agreed() const { return {loss_normalizer_, terms_}; }
  void set_agreed(const Agreed& agreed);

 private:
  void agree_on_terms(double own_weight, int64_t own_terms);
  void agree_on_totals(const std::vector<double>& own);
  void drop_cleared();

  ParameterArena& arena_;
  std::shared_ptr<comm::Communicator> comm_;
  double loss_normalizer_ = 0;
  int64_t terms_ = 0;

  // Of the window.
  bool is_local_ = false;
  bool has_new_terms_ = false;                 // agreed on in it
  std::vector<double> batch_totals_;           // by the batch
  std::optional<std::vector<double>> totals_;  // over all ranks
  double weight_ = 0;
  std::vector<double> sums_;  // per term
  std::vector<double> weights_;
  struct DeferredTerm {
    double divisor = 1;  // of the term before its backwards: the first weight that is not 0
    bool has_divisor = false;
    std::vector<torch::Tensor> gradients = {};  // per span; undefined: none

    void count(double weight);
  };
  std::vector<DeferredTerm> deferred_;  // per term; empty: nothing is deferred
  bool has_logged_ = false;
};

}  // namespace fleet
