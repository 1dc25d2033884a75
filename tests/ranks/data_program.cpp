// SPDX-License-Identifier: Apache-2.0
// What loaders hand out in a program that says nothing about ranks. The first argument says what it
// does:
//
//   once FOLDER           prints "NAME KEY" for every sample of one epoch of each loader, by name;
//                         FOLDER holds the files that data_test.cpp writes
//   own FOLDER UPDATES    trains on a batch type of its own, with snapshots in FOLDER, up to that
//                         many updates; prints losses, the words of each update, and a digest
//   before_init KIND      makes a loader before fleet::init: loader or text

#include <filesystem>
#include <string>

#include <torch/nn.h>

#include "fleet/data/images/in_memory_images.h"
#include "fleet/fleet.h"

#include "tests/ranks/print_line.h"

namespace {

namespace apps = fleet::applications;
namespace fs = std::filesystem;
using fleet::launch::digest;
using fleet::launch::print_line;

constexpr int64_t kSamples = 13;  // of no multiple of ranks or batches

// ---- once ---------------------------------------------------------------------------------------

void tell(const std::string& name, int64_t key) { print_line(fleet::format("{} {}", name, key)); }

template <typename Loader>
void tell_targets(const std::string& name, Loader loader) {
  for (const auto& batch : loader) {
    for (int64_t i = 0; i < batch.size(); ++i) tell(name, batch.target[i].template item<int64_t>());
  }
}

// For samples without a number of their own: one of all their bits.
template <typename Loader>
void tell_digests(const std::string& name, Loader loader) {
  for (const auto& batch : loader) {
    for (int64_t i = 0; i < batch.size(); ++i)
      tell(name, static_cast<int64_t>(digest({batch.data[i], batch.target[i]}) >> 1));
  }
}

// The words of a sample, before they were masked.
void tell_words(const std::string& name, fleet::MaskedText text) {
  for (const auto& batch : text) {
    if (batch.size() == 0) continue;
    auto words = batch.token_ids.clone();
    words.view({-1}).index_copy_(0, batch.masked_positions, batch.masked_labels);
    const auto first = batch.attention_mask * (1 - batch.token_type_ids);
    for (int64_t i = 0; i < batch.size(); ++i)
      tell(name, static_cast<int64_t>(digest({words[i].masked_select(first[i] > 0)}) >> 1));
  }
}

fleet::MaskedTextOptions text_in(const fs::path& folder) {
  return {.data_dir = folder / "tokens",
          .vocab_path = folder / "vocab.txt",
          .max_seq_len = 16,
          .batch_size = 2};
}

int once(const fs::path& folder) {
  fleet::init();
  const fleet::LoaderOptions two{.batch_size = 2};
  tell_targets("images", fleet::load_imagenet_from_file(folder / "list.txt",
                                                        {.batch_size = 2, .image_size = 16}));
  tell_targets(
      "images_test",
      fleet::load_imagenet_from_file(
          folder / "list.txt", {.batch_size = 2, .phase = fleet::Phase::kTest, .image_size = 16}));
  const auto images = std::make_shared<fleet::InMemoryImages>(
      torch::zeros({kSamples, 4, 4}, torch::kByte), torch::arange(kSamples),
      fleet::PixelStatistics{.mean = 0.5, .std = 0.3});
  tell_targets("in_memory", fleet::DataLoader(images, two));
  for (const auto phase : {fleet::Phase::kTrain, fleet::Phase::kTest}) {
    tell_targets(phase == fleet::Phase::kTrain ? "fashion_mnist" : "fashion_mnist_test",
                 fleet::DataLoader(fleet::load_fashion_mnist(folder, phase), two));
  }
  tell_words("masked_text", fleet::load_digital_dataset_from_file(text_in(folder)));
  const apps::Bert bert(apps::BertOptions{
      .vocab = 40, .hidden = 8, .layers = 1, .heads = 2, .intermediate = 8, .max_positions = 16});
  tell_words("bert", bert.load_digital_dataset_from_file(text_in(folder)));

  const fleet::WordPiece tokenizer(fleet::Vocabulary::load(folder / "vocab.txt"));
  const auto pairs = std::make_shared<fleet::ParallelText>(folder / "pairs.src",
                                                           folder / "pairs.tgt", tokenizer, 8);
  tell_digests("parallel_text", fleet::DataLoader(pairs, two));
  tell_digests("synthetic_images",
               fleet::DataLoader(apps::synthetic_images(10, 8, {.count = kSamples}), two));
  tell_digests("synthetic_translation",
               fleet::DataLoader(apps::synthetic_translation(67, 8, {.count = kSamples}), two));
  tell_words("synthetic_text", apps::synthetic_text(516, {.count = kSamples}, text_in(folder)));

  const fleet::TrainConfig config{.batch_size = 2};
  auto image_data =
      apps::load_image_data({.image_size = 8, .classes = 10, .samples = 5 * kSamples}, config);
  tell_digests("image_program", std::move(image_data.train));
  tell_digests("image_program_test", std::move(image_data.test));
  auto bert_data = apps::load_bert_data({.seq = 16, .samples = 20 * kSamples}, config);
  tell_words("bert_program", std::move(bert_data.train));
  tell_words("bert_program_test", std::move(bert_data.test));
  auto pair_data = apps::load_transformer_data({.seq = 8, .samples = 20 * kSamples}, config);
  tell_digests("transformer_program", std::move(pair_data.train));
  tell_digests("transformer_program_test", std::move(pair_data.test));

  fleet::ShardedSampler sampler(kSamples, {.batch_size = 2});
  for (int64_t update = sampler.updates_per_epoch(); update > 0; --update) {
    for (const int64_t index : sampler.next()) tell("sampler", index);
  }
  fleet::shutdown();
  return 0;
}

// ---- own ----------------------------------------------------------------------------------------

// A batch as a user may have it: no tensor at all.
struct Words {
  std::vector<std::string> words;

  int64_t size() const { return std::ssize(words); }
  Words slice(int64_t begin, int64_t end) const {
    return {{words.begin() + begin, words.begin() + end}};
  }
};

// Numbers in letters, 0 as "a" and 25 as "z"; derived from nothing of Fleet's.
struct Letters {
  int64_t size() const { return 50; }
  Words get(std::span<const int64_t> indices, int64_t epoch) const {
    Words batch;
    for (const int64_t index : indices) {
      std::string word;
      for (int64_t rest = index * 7 + epoch; rest > 0; rest /= 3)
        word += static_cast<char>('a' + rest % 3);
      batch.words.push_back(word + "a");
    }
    return batch;
  }
};

// Learns how many of a word's letters are an 'a'.
torch::Tensor loss_of(torch::nn::Linear& net, const Words& batch) {
  auto counts = torch::zeros({batch.size(), 3});
  for (int64_t i = 0; i < batch.size(); ++i) {
    for (const char letter : batch.words[static_cast<size_t>(i)]) counts[i][letter - 'a'] += 1;
  }
  const auto share = counts.select(1, 0) / counts.sum(1);
  return torch::mse_loss(net->forward(counts).squeeze(1), share);
}

int own(const std::string& folder, int64_t updates) {
  fleet::init();
  fleet::DataLoader data(std::make_shared<Letters>(),
                         {.batch_size = 8 / fleet::worker_num(), .seed = 3});
  torch::manual_seed(1);
  torch::nn::Linear net(3, 1);
  auto optimizer = fleet::distributed_optimizer(
      fleet::optim::Momentum(net, {.lr = 0.01}),
      {.gradient_merge = true, .gradient_merge_configs = {.k_steps = 2}});
  fleet::Snapshots snapshots(optimizer, {.snapshot_dir = folder, .save_every = 1}, data);
  print_line(fleet::format("resumed {}", snapshots.resumed().value_or(0)));
  while (optimizer.attempts() < updates) {
    for (const Words& batch : data) {
      const auto report =
          optimizer.minimize(batch, [&](const Words& part) { return loss_of(net, part); });
      print_line(fleet::format("step {} loss {:.9g}", report.update, report.loss));
      for (const auto& word : batch.words)
        print_line(fleet::format("word {} {}", report.update, word));
      snapshots.after_update();
      if (optimizer.attempts() == updates) break;
    }
  }
  snapshots.finish();
  print_line(fleet::format("digest {:016x}", digest(net->parameters())));
  fleet::shutdown();
  return 0;
}

// ---- before_init --------------------------------------------------------------------------------

int before_init(const std::string& kind) {
  if (kind == "text") {
    apps::synthetic_text(516, {.count = kSamples}, {.max_seq_len = 16});
  } else {
    fleet::DataLoader(std::make_shared<Letters>(), {.batch_size = 2});
  }
  print_line("made");
  return 0;
}

int body(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  if (mode == "once" && argc == 3) return once(argv[2]);
  if (mode == "own" && argc == 4) return own(argv[2], std::atoi(argv[3]));
  if (mode == "before_init" && argc == 3) return before_init(argv[2]);
  throw fleet::UsageError("app", "see the first lines of data_program.cpp");
}

}  // namespace

int main(int argc, char** argv) { return fleet::run_main(body, argc, argv); }
