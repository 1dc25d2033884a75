# SPDX-License-Identifier: Apache-2.0
# The readers that are fuzzed; a source of this folder and a corpus each.
set(fuzz_targets
  budget_text
  fleetrun_flags
  gzip
  idx_file
  image_list
  jpeg
  node_messages
  safetensors_file
  safetensors_header
  snapshot
  store_messages
  strategy_json
  token_lines
  train_flags
  vocabulary
  word_piece)
