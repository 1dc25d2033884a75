// SPDX-License-Identifier: Apache-2.0
// vocab.txt, with numbers and without.

#include "fleet/data/text/vocabulary.h"

#include "fuzz/scratch_file.h"

namespace fleet::fuzz {
namespace {

void run(Bytes bytes) {
  static const ScratchFile file("vocab.txt");
  std::optional<Vocabulary> vocabulary;
  if (!accepts([&] { vocabulary = Vocabulary::load(file.write(bytes)); })) return;
  for (const int64_t id :
       {vocabulary->pad(), vocabulary->start(), vocabulary->separator(), vocabulary->mask()}) {
    require(id >= 0 && id < vocabulary->size() && vocabulary->is_special(id),
            "special tokens are in it");
  }
  const auto copy = scratch_folder() / "copy.txt";
  vocabulary->save(copy);
  const auto again = Vocabulary::load(copy);
  require(again.size() == vocabulary->size(), "written again it is as large");
  for (int64_t id = 0; id < again.size(); ++id) {
    require(again.token(id) == vocabulary->token(id) && again.find(again.token(id)) == id,
            "written again its tokens are the same");
  }
}

const Target target("vocabulary", run);

}  // namespace
}  // namespace fleet::fuzz
