// SPDX-License-Identifier: Apache-2.0
// Attention as in attention.inl, for bfloat16 on CPUs that multiply it (AVX512_BF16): twice the
// arithmetic of float. An instruction adds the products of two neighbours, so the left operand of a
// product is read in pairs along the depth, and the right one has pairs of rows interleaved. Scores,
// sums and gradients of keys and values are float; weights and slopes are rounded to bfloat16 where
// they enter a product.

namespace {

using Pair = uint32_t;  // two bfloat16, the earlier one in the lower half
constexpr int64_t kTilePairs = kTile / 2;

FLEET_INLINE __m512i load_pairs(const void* p) { return _mm512_loadu_si512(p); }
FLEET_INLINE void store_pairs(void* p, __m512i x) { _mm512_storeu_si512(p, x); }
FLEET_INLINE __m512i widened(const uint16_t* p) {
  return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}

// Rounds two rows of 16: the first in the lower half.
FLEET_INLINE __m512i rounded(Floats first, Floats second) {
  return (__m512i)_mm512_cvtne2ps_pbh((__m512)second, (__m512)first);
}
// Interleaves the halves.
FLEET_INLINE __m512i paired(__m512i both) {
  alignas(64) static constexpr uint16_t kOrder[32] = {
      0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
      8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  return _mm512_permutexvar_epi16(_mm512_load_si512(kOrder), both);
}

enum class Into { kNew, kScaled, kAdded };

// c (Rows x Columns registers) = a b, factor a b, or += a b; depth in pairs.
template <int Rows, int Columns, Into Mode>
FLEET_INLINE void pair_tile(const Pair* a, int64_t lda, const Pair* b, int64_t ldb, float* c,
                            int64_t ldc, int64_t depth, float factor) {
  __m512 sum[Rows][Columns];
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
    for (int n = 0; n < Columns; ++n) {
      sum[r][n] = Mode == Into::kAdded ? (__m512)load(c + r * ldc + n * 16) : _mm512_setzero_ps();
    }
  }
  for (int64_t k = 0; k < depth; ++k) {
    __m512i right[Columns];
#pragma GCC unroll 4
    for (int n = 0; n < Columns; ++n) right[n] = load_pairs(b + k * ldb + n * 16);
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
      const auto left = (__m512bh)_mm512_set1_epi32(static_cast<int>(a[r * lda + k]));
#pragma GCC unroll 4
      for (int n = 0; n < Columns; ++n) {
        sum[r][n] = _mm512_dpbf16_ps(sum[r][n], left, (__m512bh)right[n]);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
    for (int n = 0; n < Columns; ++n) {
      const auto result = (Floats)sum[r][n];
      store(c + r * ldc + n * 16, Mode == Into::kScaled ? result * factor : result);
    }
  }
}

template <int Columns, Into Mode>
FLEET_INLINE void pair_columns(const Pair* a, int64_t lda, const Pair* b, int64_t ldb, float* c,
                               int64_t ldc, int64_t rows, int64_t depth, float factor) {
  int64_t r = 0;
  for (; r + 6 <= rows; r += 6) {
    pair_tile<6, Columns, Mode>(a + r * lda, lda, b, ldb, c + r * ldc, ldc, depth, factor);
  }
  for (; r + 4 <= rows; r += 4) {
    pair_tile<4, Columns, Mode>(a + r * lda, lda, b, ldb, c + r * ldc, ldc, depth, factor);
  }
  for (; r < rows; ++r) {
    pair_tile<1, Columns, Mode>(a + r * lda, lda, b, ldb, c + r * ldc, ldc, depth, factor);
  }
}

template <Into Mode>
void pair_product(const Pair* a, int64_t lda, const Pair* b, int64_t ldb, float* c, int64_t ldc,
                  int64_t rows, int64_t columns, int64_t depth, float factor = 1) {
  int64_t n = 0;
  for (; n + 64 <= columns; n += 64) {
    pair_columns<4, Mode>(a, lda, b + n, ldb, c + n, ldc, rows, depth, factor);
  }
  for (; n + 32 <= columns; n += 32) {
    pair_columns<2, Mode>(a, lda, b + n, ldb, c + n, ldc, rows, depth, factor);
  }
  for (; n < columns; n += 16) {
    pair_columns<1, Mode>(a, lda, b + n, ldb, c + n, ldc, rows, depth, factor);
  }
}

/// Parts of `scratch`. Widths are padded to 16 with zeros, keys to pairs.
struct PairScratch {
  int64_t padded;  // width
  int64_t pairs;   // of the width
  Pair* k;         // keys x pairs
  Pair* v;
  Pair* tiles;    // of each tile padded x kTilePairs: of the values forward, of the keys backward
  Pair* q;        // 64 x pairs
  Pair* qt;       // pairs x 64
  Pair* q_rows;   // kTilePairs x padded: pairs of queries
  Pair* dout;     // as the three above
  Pair* dout_t;
  Pair* dout_rows;
  Pair* weights;  // 64 x 64: kTilePairs x 64 forward, 64 x kTilePairs backward
  Pair* slopes;   // 64 x kTilePairs
  Pair* slopes_t;  // kTilePairs x 64
  float* scores;  // 64 x 64
  float* d_weights;
  float* sums;  // padded x 64
  float* out;   // 64 x padded

  PairScratch(float* base, int64_t keys, int64_t width)
      : padded(round_up(width, 16)), pairs(padded / 2) {
    const int64_t rows = round_up(keys, kTile);
    const auto floats = [&](int64_t count) {
      float* const place = base;
      base += round_up(count, 16);
      return place;
    };
    const auto take = [&](int64_t count) { return reinterpret_cast<Pair*>(floats(count)); };
    k = take(rows * pairs);
    v = take(rows * pairs);
    tiles = take(rows * pairs);
    q = take(kTile * pairs);
    qt = take(kTile * pairs);
    q_rows = take(kTilePairs * padded);
    dout = take(kTile * pairs);
    dout_t = take(kTile * pairs);
    dout_rows = take(kTilePairs * padded);
    weights = take(kTile * kTilePairs);
    slopes = take(kTile * kTilePairs);
    slopes_t = take(kTile * kTilePairs);
    scores = floats(kTile * kTile);
    d_weights = floats(kTile * kTile);
    sums = floats(kTile * padded);
    out = floats(kTile * padded);
  }

  static int64_t size(int64_t keys, int64_t width) {
    const int64_t padded = round_up(width, 16);
    return 3 * round_up(keys, kTile) * padded / 2 + 5 * kTile * padded +
           2 * kTile * kTile + 3 * kTile * kTilePairs;
  }
};

int64_t attention_scratch_bf16(int64_t key_count, int64_t width) {
  return PairScratch::size(key_count, width);
}

// Rows of bfloat16 as they are, padded with zeros; rows up to `filled` are zero.
void copy_pairs(Rows<uint16_t> from, int64_t rows, int64_t filled, int64_t width, Pair* to,
                int64_t pairs) {
  for (int64_t r = 0; r < filled; ++r) {
    for (int64_t i = 0; i < 2 * pairs; i += 16) {
      const int64_t left = r < rows ? least(16, width - i) : 0;
      const auto mask = static_cast<__mmask16>((1u << (left > 0 ? left : 0)) - 1);
      const __m256i x =
          left > 0 ? _mm256_maskz_loadu_epi16(mask, from[r] + i) : _mm256_setzero_si256();
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + r * pairs + i / 2), x);
    }
  }
}

// Rows 2 i and 2 i + 1 interleaved: `row_pairs` x 2 `pairs`.
void interleave(const Pair* from, int64_t row_pairs, int64_t pairs, Pair* to) {
  for (int64_t r = 0; r < row_pairs; ++r) {
    const auto* const first = reinterpret_cast<const uint16_t*>(from + 2 * r * pairs);
    const auto* const second = first + 2 * pairs;
    for (int64_t i = 0; i < 2 * pairs; i += 16) {
      store_pairs(to + r * 2 * pairs + i,
                  _mm512_or_si512(widened(first + i), _mm512_slli_epi32(widened(second + i), 16)));
    }
  }
}

void transpose_pairs(const Pair* from, int64_t from_stride, int64_t rows, int64_t columns, Pair* to,
                     int64_t to_stride) {
  transpose(reinterpret_cast<const float*>(from), from_stride, rows, columns,
            reinterpret_cast<float*>(to), to_stride);
}

// Of each tile: columns as rows, in pairs of keys. `room`: kTilePairs x padded.
void pair_tiles(const Pair* from, int64_t keys, int64_t pairs, Pair* to, Pair* room) {
  for (int64_t r = 0; r < keys; r += kTile) {
    const int64_t row_pairs = (least(kTile, keys - r) + 1) / 2;
    interleave(from + r * pairs, row_pairs, pairs, room);
    transpose_pairs(room, 2 * pairs, row_pairs, 2 * pairs, to + r * pairs, kTilePairs);
  }
}

// 2^t to 1e-4, for what is rounded to bfloat16; 0 far below. The polynomial interpolates 2^f at the
// Chebyshev nodes of [-0.5, 0.5].
FLEET_INLINE Floats exp2_rounded(Floats t) {
  t = larger(splat(-200.0f), t);
  const auto whole = (Floats)_mm512_roundscale_ps((__m512)t, 8);
  const Floats f = t - whole;
  Floats p = splat(5.5171669e-2f);
  p = p * f + 2.4261112e-1f;
  p = p * f + 6.9326099e-1f;
  p = p * f + 9.9992807e-1f;
  return (Floats)_mm512_scalef_ps((__m512)p, (__m512)whole);
}

// As softmax_tile; weights are left in pairs of keys.
template <int64_t Lanes>
void softmax_pairs(const AttentionArgs& args, const RandomStream& stream, int64_t first,
                   int64_t keys, int64_t block, const float* scores, Pair* weights,
                   SoftmaxState& state, float* correction) {
  constexpr int64_t kRegisters = Lanes / 16;
  Floats most[kRegisters], sum[kRegisters];
#pragma GCC unroll 4
  for (int64_t c = 0; c < kRegisters; ++c) most[c] = load(state.most + c * 16);
  for (int64_t j = 0; j < keys; ++j) {
#pragma GCC unroll 4
    for (int64_t c = 0; c < kRegisters; ++c) {
      most[c] = larger(most[c], load(scores + j * kTile + c * 16));
    }
  }
#pragma GCC unroll 4
  for (int64_t c = 0; c < kRegisters; ++c) {
    const Floats factor = exp2_rounded(load(state.most + c * 16) - most[c]);
    store(correction + c * 16, factor);
    sum[c] = load(state.sum + c * 16) * factor;
    store(state.most + c * 16, most[c]);
  }
  KeepMask masks[kTile];
  if (stream.drops()) tile_masks(args, stream, first, keys, block, masks);
  for (int64_t j = 0; j < keys; j += 2) {
    const bool is_alone = j + 1 == keys;
#pragma GCC unroll 4
    for (int64_t c = 0; c < kRegisters; ++c) {
      Floats one = exp2_rounded(load(scores + j * kTile + c * 16) - most[c]);
      Floats other = is_alone
                         ? Floats{}
                         : exp2_rounded(load(scores + (j + 1) * kTile + c * 16) - most[c]);
      sum[c] += one + other;
      if (stream.drops()) {
        one = where(masks[j], c, one);
        if (!is_alone) other = where(masks[j + 1], c, other);
      }
      store_pairs(weights + j / 2 * kTile + c * 16, paired(rounded(one, other)));
    }
  }
#pragma GCC unroll 4
  for (int64_t c = 0; c < kRegisters; ++c) store(state.sum + c * 16, sum[c]);
}

// The queries of a block, or the gradients of its results, as they are and in pairs of columns.
void take_block(const void* base, int64_t stride, const QueryBlock& block, int64_t width,
                int64_t pairs, Pair* rows, Pair* columns) {
  const Rows<uint16_t> from{static_cast<const uint16_t*>(base) + block.first * stride, stride,
                            nullptr};
  copy_pairs(from, block.count, block.lanes, width, rows, pairs);
  transpose_pairs(rows, pairs, block.lanes, pairs, columns, kTile);
}

// Scores of a tile, times log2(e), masked.
void score_tile(const AttentionArgs& args, const PairScratch& s, const QueryBlock& block,
                int64_t first, int64_t keys) {
  pair_product<Into::kScaled>(s.k + first * s.pairs, s.pairs, s.qt, kTile, s.scores, kTile, keys,
                              block.lanes, s.pairs, args.scale * kLog2e);
  if (args.bias || first + keys > block.fewest_keys) {
    mask_scores(args, block, first, keys, s.scores, s.d_weights);
  }
}

void attention_bf16(const AttentionArgs& args, int64_t begin, int64_t end) {
  const PairScratch s(args.scratch, args.key_count, args.width);
  RandomStream stream = *args.stream;
  stream.site |= args.head << 16;
  const int64_t even = round_up(args.key_count, 2);
  copy_pairs({static_cast<const uint16_t*>(args.k), args.k_stride, args.keys}, args.key_count, even,
             args.width, s.k, s.pairs);
  copy_pairs({static_cast<const uint16_t*>(args.v), args.v_stride, args.keys}, args.key_count, even,
             args.width, s.v, s.pairs);
  pair_tiles(s.v, args.key_count, s.pairs, s.tiles, s.q_rows);
  for (int64_t b = begin; b < end; ++b) {
    const auto block = query_block(args, b);
    take_block(args.q, args.q_stride, block, args.width, s.pairs, s.q, s.qt);
    SoftmaxState state;
    alignas(64) float correction[kTile];
    for (int64_t i = 0; i < kTile; ++i) {
      state.most[i] = kHidden;
      state.sum[i] = 0;
    }
    const auto softmax = block.lanes == 16   ? softmax_pairs<16>
                         : block.lanes == 32 ? softmax_pairs<32>
                                             : softmax_pairs<64>;
    for (int64_t first = 0; first < block.most_keys; first += kTile) {
      const int64_t keys = least(kTile, block.most_keys - first);
      score_tile(args, s, block, first, keys);
      softmax(args, stream, first, keys, b, s.scores, s.weights, state, correction);
      const Pair* const vt = s.tiles + first * s.pairs;
      if (first == 0) {
        pair_product<Into::kNew>(vt, kTilePairs, s.weights, kTile, s.sums, kTile, s.padded,
                                 block.lanes, (keys + 1) / 2);
      } else {
        scale_columns(s.sums, s.padded, block.lanes, correction);
        pair_product<Into::kAdded>(vt, kTilePairs, s.weights, kTile, s.sums, kTile, s.padded,
                                   block.lanes, (keys + 1) / 2);
      }
    }
    for (int64_t i = 0; i < kTile; ++i) correction[i] = stream.scale / state.sum[i];
    scale_columns(s.sums, s.padded, block.lanes, correction);
    transpose(s.sums, kTile, s.padded, block.lanes, s.out, s.padded);
    for (int64_t i = 0; i < block.count; ++i) {
      auto* const out = static_cast<uint16_t*>(args.out) + (block.first + i) * args.out_stride;
      const bool sees_nothing = state.most[i] == kHidden;
      for (int64_t d = 0; d < args.width; d += kLanes) {
        store(out + d, sees_nothing ? Floats{} : load(s.out + i * s.padded + d), args.width - d);
      }
      // Without keys: so high that backward finds no weights.
      args.lse[block.first + i] =
          sees_nothing ? -kHidden : state.most[i] + __builtin_log2f(state.sum[i]);
    }
  }
}

// As slopes_tile: weights as rows of keys; slopes, times the scale, as rows and in pairs of keys.
template <int64_t Lanes>
void slope_pairs(const AttentionArgs& args, const RandomStream& stream, int64_t first, int64_t keys,
                 int64_t block, const PairScratch& s, const float* lse, const float* delta) {
  const Floats scale = splat(stream.scale);
  KeepMask masks[kTile];
  if (stream.drops()) tile_masks(args, stream, first, keys, block, masks);
  struct Row {
    Floats weight, slope;
  };
  const auto row = [&](int64_t j, int64_t i) __attribute__((always_inline)) {
    const int64_t place = j * kTile + i;
    const Floats weight = exp2_rounded(load(s.scores + place) - load(lse + i));
    Row row{weight, load(s.d_weights + place)};
    if (stream.drops()) {
      const Floats mask = where(masks[j], i / 16, scale);
      row.weight *= mask;
      row.slope *= mask;
    }
    row.slope = weight * args.scale * (row.slope - load(delta + i));
    return row;
  };
  const auto store_rows = [&](Pair* to, int64_t j, int64_t i, __m512i both)
      __attribute__((always_inline)) {
    auto* const place = reinterpret_cast<__m256i*>(to + j * kTilePairs + i / 2);
    _mm256_storeu_si256(place, _mm512_castsi512_si256(both));
    _mm256_storeu_si256(place + kTilePairs / 8, _mm512_extracti64x4_epi64(both, 1));
  };
  for (int64_t j = 0; j < keys; j += 2) {
    // A last row alone has a row of zeros beside it, for which there is room.
    const bool is_alone = j + 1 == keys;
#pragma GCC unroll 4
    for (int64_t i = 0; i < Lanes; i += 16) {
      const Row one = row(j, i);
      const Row other = is_alone ? Row{} : row(j + 1, i);
      const __m512i slopes = rounded(one.slope, other.slope);
      store_rows(s.weights, j, i, rounded(one.weight, other.weight));
      store_rows(s.slopes, j, i, slopes);
      store_pairs(s.slopes_t + j / 2 * kTile + i, paired(slopes));
    }
  }
}

// The formulas stand in attention.inl.
void attention_backward_bf16(const AttentionArgs& args, int64_t begin, int64_t end) {
  const PairScratch s(args.scratch, args.key_count, args.width);
  RandomStream stream = *args.stream;
  stream.site |= args.head << 16;
  const int64_t even = round_up(args.key_count, 2);
  copy_pairs({static_cast<const uint16_t*>(args.k), args.k_stride, args.keys}, args.key_count, even,
             args.width, s.k, s.pairs);
  copy_pairs({static_cast<const uint16_t*>(args.v), args.v_stride, args.keys}, args.key_count, even,
             args.width, s.v, s.pairs);
  pair_tiles(s.k, args.key_count, s.pairs, s.tiles, s.q_rows);
  for (int64_t b = begin; b < end; ++b) {
    const auto block = query_block(args, b);
    const int64_t query_pairs = (block.count + 1) / 2;
    take_block(args.q, args.q_stride, block, args.width, s.pairs, s.q, s.qt);
    take_block(args.dout, args.dout_stride, block, args.width, s.pairs, s.dout, s.dout_t);
    interleave(s.q, query_pairs, s.pairs, s.q_rows);
    interleave(s.dout, query_pairs, s.pairs, s.dout_rows);
    alignas(64) float lse[kTile], delta[kTile];
    for (int64_t i = 0; i < kTile; ++i) {
      lse[i] = i < block.count ? args.lse[block.first + i] : 0.0f;
      Floats dots = {};
      if (i < block.count) {
        const auto* const out =
            static_cast<const uint16_t*>(args.out) + (block.first + i) * args.out_stride;
        const auto* const dout = reinterpret_cast<const uint16_t*>(s.dout + i * s.pairs);
        for (int64_t d = 0; d < args.width; d += kLanes) {
          dots += load(out + d, args.width - d) * load(dout + d);
        }
      }
      delta[i] = sum_of(dots);
    }
    const auto slopes = block.lanes == 16   ? slope_pairs<16>
                        : block.lanes == 32 ? slope_pairs<32>
                                            : slope_pairs<64>;
    for (int64_t i = 0; i < s.padded * kTile; ++i) s.sums[i] = 0;  // dQ^T
    for (int64_t first = 0; first < block.most_keys; first += kTile) {
      const int64_t keys = least(kTile, block.most_keys - first);
      score_tile(args, s, block, first, keys);
      pair_product<Into::kNew>(s.v + first * s.pairs, s.pairs, s.dout_t, kTile, s.d_weights, kTile,
                               keys, block.lanes, s.pairs);
      slopes(args, stream, first, keys, b, s, lse, delta);
      // Beyond `count` the rows of q and dout are zero, whatever the weights there.
      pair_product<Into::kAdded>(s.weights, kTilePairs, s.dout_rows, s.padded,
                                 args.dv + first * s.padded, s.padded, keys, s.padded, query_pairs);
      pair_product<Into::kAdded>(s.slopes, kTilePairs, s.q_rows, s.padded,
                                 args.dk + first * s.padded, s.padded, keys, s.padded, query_pairs);
      pair_product<Into::kAdded>(s.tiles + first * s.pairs, kTilePairs, s.slopes_t, kTile, s.sums,
                                 kTile, s.padded, block.lanes, (keys + 1) / 2);
    }
    transpose(s.sums, kTile, s.padded, block.lanes, s.out, s.padded);
    for (int64_t i = 0; i < block.count; ++i) {
      auto* const dq = static_cast<uint16_t*>(args.dq) + (block.first + i) * args.dq_stride;
      for (int64_t d = 0; d < args.width; d += kLanes) {
        store(dq + d, load(s.out + i * s.padded + d), args.width - d);
      }
    }
  }
}

}  // namespace
