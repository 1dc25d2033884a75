// SPDX-License-Identifier: Apache-2.0
// What the guide's programs compute on two ranks, in one process and without the library's
// training: its models and data, torch's autograd, and the papers' formulas as they stand there.
//
//   test_guide_by_hand RULE               adam, lamb: BERT of guide 003
//   test_guide_by_hand RULE               momentum, lars: ResNet50 of guide 003
//   test_guide_by_hand merge LR           guide 002
//   test_guide_by_hand local_sgd SEED     guide 004
//   test_guide_by_hand alone SEED         the same, but for the averages
//
// Prints " cost = LOSS" for every update, and the intervals of local SGD.

#include <fleet/fleet.h>

#include <array>
#include <cmath>
#include <functional>
#include <iostream>
#include <string>
#include <vector>

namespace {

using fleet::Batch;
using fleet::applications::Bert;
using fleet::applications::Resnet;

constexpr int64_t kRanks = 2;
constexpr int64_t kMerged = 4;  // micro-batches of an update of guide 002, on each rank

struct Moments {
  torch::Tensor first, second;
  int64_t updates = 0;
};
using Rule = std::function<void(torch::Tensor&, const torch::Tensor&, Moments&)>;

void print_loss(double loss) { std::cout << fleet::format(" cost = {:.6f}\n", loss); }

// Neither a bias nor of a norm: those are left out of decay and trust ratio.
bool is_weight(const torch::Tensor& value) { return value.dim() > 1; }

double norm_of(const torch::Tensor& value) { return value.norm().item<double>(); }

Rule momentum(double lr) {
  return [lr](torch::Tensor& value, const torch::Tensor& gradient, Moments& moments) {
    moments.first = 0.9 * moments.first + gradient;
    value.sub_(lr * moments.first);
  };
}

// arXiv 1708.03888, with the guide's numbers.
void lars(torch::Tensor& value, const torch::Tensor& gradient, Moments& moments) {
  const double decay = is_weight(value) ? 0.0005 : 0;
  double rate = 0.01;
  if (is_weight(value)) {
    rate *= 0.001 * norm_of(value) / (norm_of(gradient) + decay * norm_of(value));
  }
  moments.first = 0.9 * moments.first + rate * (gradient + decay * value);
  value.sub_(moments.first);
}

// arXiv 1412.6980.
torch::Tensor adam_direction(const torch::Tensor& gradient, Moments& moments) {
  const auto updates = static_cast<double>(++moments.updates);
  moments.first = 0.9 * moments.first + 0.1 * gradient;
  moments.second = 0.999 * moments.second + 0.001 * gradient * gradient;
  return moments.first / (1 - std::pow(0.9, updates)) /
         ((moments.second / (1 - std::pow(0.999, updates))).sqrt() + 1e-8);
}

void adam(torch::Tensor& value, const torch::Tensor& gradient, Moments& moments) {
  value.sub_(0.01 * adam_direction(gradient, moments));
}

// arXiv 1904.00962, with the guide's numbers.
void lamb(torch::Tensor& value, const torch::Tensor& gradient, Moments& moments) {
  auto direction = adam_direction(gradient, moments);
  double ratio = 1;
  if (is_weight(value)) {
    direction = direction + 0.01 * value;
    ratio = norm_of(value) / norm_of(direction);
  }
  value.sub_(0.01 * ratio * direction);
}

class Training {
 public:
  Training(std::vector<torch::Tensor> parameters, Rule rule)
      : parameters_(std::move(parameters)), rule_(std::move(rule)) {
    for (const auto& value : parameters_) {
      moments_.push_back({torch::zeros_like(value), torch::zeros_like(value)});
    }
  }

  void update() {
    const torch::NoGradGuard no_grad;
    for (size_t i = 0; i < parameters_.size(); ++i) {
      rule_(parameters_[i], parameters_[i].grad(), moments_[i]);
      parameters_[i].mutable_grad().reset();
    }
  }

  std::vector<torch::Tensor>& parameters() { return parameters_; }

 private:
  std::vector<torch::Tensor> parameters_;
  Rule rule_;
  std::vector<Moments> moments_;
};

std::vector<Batch> images_of(const Resnet& model, int64_t rank, int64_t batch_size) {
  auto loader = model.load_imagenet_from_file(
      "./ImageNet/train.txt", {.batch_size = batch_size, .rank = rank, .world_size = kRanks});
  std::vector<Batch> batches;
  for (const auto& batch : loader) batches.push_back(batch);
  return batches;
}

// One model, whose gradient is the mean over all that the ranks see.
void train_images(const Rule& rule, int64_t batch_size, int64_t merged) {
  torch::manual_seed(1);
  const auto model = fleet::applications::Resnet50();
  Training training(model.parameters(), rule);
  std::array<std::vector<Batch>, kRanks> images;
  for (int64_t rank = 0; rank < kRanks; ++rank) images[rank] = images_of(model, rank, batch_size);
  for (size_t first = 0; first + merged <= images[0].size(); first += merged) {
    double mean = 0;
    for (const auto& of_rank : images) {
      for (size_t i = first; i < first + merged; ++i) {
        const auto loss = model.loss(of_rank[i]) / static_cast<double>(kRanks * merged);
        mean += loss.item<double>();
        loss.backward();
      }
    }
    print_loss(mean);
    training.update();
  }
}

// Of both ranks' masked tokens together, and of their pairs: ranks have unequal numbers of tokens.
void train_text(const Rule& rule) {
  torch::manual_seed(1);
  const auto model = fleet::applications::Bert_base();
  Training training(model.parameters(), rule);
  std::array<std::vector<fleet::BertBatch>, kRanks> text;
  for (int64_t rank = 0; rank < kRanks; ++rank) {
    auto loader = model.load_digital_dataset_from_file({.data_dir = "./train_data",
                                                        .vocab_path = "./vocab.txt",
                                                        .max_seq_len = 128,
                                                        .batch_size = 16,
                                                        .rank = rank,
                                                        .world_size = kRanks});
    for (const auto& batch : loader) text[rank].push_back(batch);
  }
  for (size_t i = 0; i < text[0].size(); ++i) {
    const auto first = model.loss(text[0][i]);
    const auto second = model.loss(text[1][i]);
    torch::Tensor loss;
    for (size_t t = 0; t < first.terms.size(); ++t) {
      const auto mean = (first.terms[t].sum + second.terms[t].sum) /
                        (first.terms[t].weight + second.terms[t].weight);
      loss = loss.defined() ? loss + mean : mean;
    }
    print_loss(loss.item<double>());
    loss.backward();
    training.update();
  }
}

// arXiv 1810.08313: the next interval is ceil(k_0 sqrt(loss / loss_0)), at a constant rate and with
// k_0 = 1. The loss is a moving average.
class Interval {
 public:
  int64_t after(double loss, int64_t updates) {
    if (first_ == 0) first_ = loss_ = loss;
    const double kept = std::pow(0.9, static_cast<double>(updates));
    loss_ = kept * loss_ + (1 - kept) * loss;
    return static_cast<int64_t>(std::min(16.0, std::ceil(std::sqrt(loss_ / first_))));
  }

 private:
  double first_ = 0;
  double loss_ = 0;
};

enum class AtIntervalsEnd { kAverage, kNothing };

// A model for each rank, trained alone by SGD; their parameters are averaged at the end of an
// interval.
void train_local(uint64_t seed, AtIntervalsEnd at_end) {
  std::array<std::vector<Batch>, kRanks> images;
  std::vector<Resnet> models;
  std::vector<Training> trainings;
  const auto sgd = [](torch::Tensor& value, const torch::Tensor& gradient, Moments&) {
    value.sub_(0.01 * gradient);
  };
  for (int64_t rank = 0; rank < kRanks; ++rank) {
    torch::manual_seed(seed);
    models.push_back(fleet::applications::Resnet50());
    trainings.emplace_back(models[rank].parameters(), sgd);
    images[rank] = images_of(models[rank], rank, 32);
  }
  Interval interval;
  int64_t k_steps = 1;
  int64_t since = 0;
  double sum = 0;  // of the ranks' losses since the last average
  for (size_t i = 0; i < images[0].size(); ++i) {
    std::array<double, kRanks> own{};
    for (int64_t rank = 0; rank < kRanks; ++rank) {
      const auto loss = models[rank].loss(images[rank][i]);
      own[rank] = loss.item<double>();
      sum += own[rank];
      loss.backward();
      trainings[rank].update();
    }
    if (++since < k_steps) {
      print_loss(own[0]);
      continue;
    }
    const torch::NoGradGuard no_grad;
    for (size_t p = 0; p < trainings[0].parameters().size(); ++p) {
      if (at_end == AtIntervalsEnd::kNothing) break;
      auto& first = trainings[0].parameters()[p];
      auto& second = trainings[1].parameters()[p];
      first.copy_((first + second) / 2);
      second.copy_(first);
    }
    const double mean = sum / static_cast<double>(kRanks * since);
    print_loss(mean);
    const auto next = interval.after(mean, since);
    if (next != k_steps) std::cout << fleet::format("update {}: averages every {}\n", i + 1, next);
    k_steps = next;
    since = 0;
    sum = 0;
  }
}

int train(int argc, char** argv) {
  const std::string rule = argc > 1 ? argv[1] : "";
  const std::string number = argc > 2 ? argv[2] : "1";
  if (rule == "adam") return train_text(adam), 0;
  if (rule == "lamb") return train_text(lamb), 0;
  if (rule == "momentum") return train_images(momentum(0.01), 32, 1), 0;
  if (rule == "lars") return train_images(lars, 32, 1), 0;
  if (rule == "merge") return train_images(momentum(std::stod(number)), 8, kMerged), 0;
  const auto seed = static_cast<uint64_t>(std::stod(number));
  if (rule == "local_sgd") return train_local(seed, AtIntervalsEnd::kAverage), 0;
  if (rule == "alone") return train_local(seed, AtIntervalsEnd::kNothing), 0;
  return 2;
}

}  // namespace

int main(int argc, char** argv) { return fleet::run_main(train, argc, argv); }
