// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fleet/data/text/vocabulary.h"

namespace fleet::fuzz {

/// Few tokens, so that random numbers are often among them.
inline const Vocabulary& small_vocabulary() {
  static const Vocabulary vocabulary(
      {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "##a", "b", "##bc", "e", "!", "un"});
  return vocabulary;
}

}  // namespace fleet::fuzz
