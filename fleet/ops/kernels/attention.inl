// SPDX-License-Identifier: Apache-2.0
// Attention, tile by tile (Milakov and Gimelshein, arXiv 1805.02867; Dao et al., arXiv 2205.14135),
// with everything transposed: 64 queries lie in the lanes, so that the softmax over the keys needs
// no sum across a register, a shorter loop leaves out keys that must not be seen, and one word of
// the dropout's mask covers one key for all 64 queries. Scores exist for one tile at a time. Tiles
// are float whatever the type of the tensors.

namespace {

using fleet::ops::AttentionArgs;

constexpr int64_t kTile = 64;  // queries of a block, and keys of a tile

#if defined(__AVX512F__)
constexpr int kRows = 6, kColumns = 4;  // registers of a product's micro-tile
#elif defined(__AVX2__)
constexpr int kRows = 6, kColumns = 2;
#else
constexpr int kRows = 4, kColumns = 2;
#endif

// c (Rows x Columns registers) = a b, or += a b. a is read one element at a time, b in registers.
template <int Rows, int Columns, bool Add>
FLEET_INLINE void product_tile(const float* a, int64_t lda, const float* b, int64_t ldb, float* c,
                               int64_t ldc, int64_t depth) {
  Floats sum[Rows][Columns];
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
    for (int n = 0; n < Columns; ++n) sum[r][n] = Add ? load(c + r * ldc + n * kLanes) : Floats{};
  }
  for (int64_t k = 0; k < depth; ++k) {
    Floats right[Columns];
#pragma GCC unroll 4
    for (int n = 0; n < Columns; ++n) right[n] = load(b + k * ldb + n * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
      const Floats left = splat(a[r * lda + k]);
#pragma GCC unroll 4
      for (int n = 0; n < Columns; ++n) sum[r][n] += left * right[n];
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
    for (int n = 0; n < Columns; ++n) store(c + r * ldc + n * kLanes, sum[r][n]);
  }
}

template <int Columns, bool Add>
FLEET_INLINE void product_columns(const float* a, int64_t lda, const float* b, int64_t ldb,
                                  float* c, int64_t ldc, int64_t rows, int64_t depth) {
  int64_t r = 0;
  for (; r + kRows <= rows; r += kRows) {
    product_tile<kRows, Columns, Add>(a + r * lda, lda, b, ldb, c + r * ldc, ldc, depth);
  }
  for (; r + 4 <= rows; r += 4) {
    product_tile<4, Columns, Add>(a + r * lda, lda, b, ldb, c + r * ldc, ldc, depth);
  }
  for (; r + 2 <= rows; r += 2) {
    product_tile<2, Columns, Add>(a + r * lda, lda, b, ldb, c + r * ldc, ldc, depth);
  }
  if (r < rows) product_tile<1, Columns, Add>(a + r * lda, lda, b, ldb, c + r * ldc, ldc, depth);
}

// c (rows x columns) = a (rows x depth) b (depth x columns), or += a b; columns is a multiple of 16.
template <bool Add>
void product(const float* a, int64_t lda, const float* b, int64_t ldb, float* c, int64_t ldc,
             int64_t rows, int64_t columns, int64_t depth) {
  int64_t n = 0;
  for (; n + kColumns * kLanes <= columns; n += kColumns * kLanes) {
    product_columns<kColumns, Add>(a, lda, b + n, ldb, c + n, ldc, rows, depth);
  }
  if constexpr (kColumns > 2) {
    for (; n + 2 * kLanes <= columns; n += 2 * kLanes) {
      product_columns<2, Add>(a, lda, b + n, ldb, c + n, ldc, rows, depth);
    }
  }
  for (; n < columns; n += kLanes) {
    product_columns<1, Add>(a, lda, b + n, ldb, c + n, ldc, rows, depth);
  }
}

/// Parts of `scratch`, in floats. Widths are padded to 16 with zeros.
struct AttentionScratch {
  int64_t padded;  // width
  float* k;        // keys x padded
  float* v;
  float* kt;  // of each tile padded x 64
  float* vt;
  float* qt;      // padded x 64, times scale and log2(e)
  float* q;       // 64 x padded, times scale
  float* dout;    // 64 x padded
  float* dout_t;  // padded x 64
  float* scores;  // 64 x 64
  float* weights;
  float* slopes;
  float* out_t;  // padded x 64

  AttentionScratch(float* base, int64_t keys, int64_t width)
      : padded(round_up(width, 16)) {
    const int64_t rows = round_up(keys, kTile);
    const auto take = [&](int64_t count) {
      float* const place = base;
      base += round_up(count, 16);
      return place;
    };
    k = take(rows * padded);
    v = take(rows * padded);
    kt = take(rows * padded);
    vt = take(rows * padded);
    qt = take(kTile * padded);
    q = take(kTile * padded);
    dout = take(kTile * padded);
    dout_t = take(kTile * padded);
    scores = take(kTile * kTile);
    weights = take(kTile * kTile);
    slopes = take(kTile * kTile);
    out_t = take(kTile * padded);
  }
};

int64_t attention_scratch(int64_t key_count, int64_t width) {
  const int64_t padded = round_up(width, 16);
  return 4 * round_up(key_count, kTile) * padded + 5 * kTile * padded + 3 * kTile * kTile;
}

/// Rows of a tensor, of which `index` picks some; null: all.
template <typename T>
struct Rows {
  const T* data;
  int64_t stride;
  const int32_t* index;

  FLEET_INLINE const T* operator[](int64_t i) const {
    return data + (index ? index[i] : i) * stride;
  }
};

template <typename T>
void copy_rows(Rows<T> from, int64_t rows, int64_t width, float scale, float* to, int64_t padded) {
  for (int64_t r = 0; r < rows; ++r) {
    const T* source = from[r];
    for (int64_t i = 0; i < padded; i += kLanes) {
      store(to + r * padded + i,
            i < width ? load(source + i, width - i) * scale : Floats{});
    }
  }
}

#if defined(__AVX2__)
// 8 x 8 floats from rows to columns.
FLEET_INLINE void transpose8(const float* from, int64_t from_stride, float* to, int64_t to_stride) {
  __m256 r[8], s[8];
  for (int i = 0; i < 8; ++i) r[i] = _mm256_loadu_ps(from + i * from_stride);
  for (int i = 0; i < 8; i += 2) {
    s[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
    s[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    r[i] = _mm256_shuffle_ps(s[i], s[i + 2], 0x44);
    r[i + 1] = _mm256_shuffle_ps(s[i], s[i + 2], 0xee);
    r[i + 2] = _mm256_shuffle_ps(s[i + 1], s[i + 3], 0x44);
    r[i + 3] = _mm256_shuffle_ps(s[i + 1], s[i + 3], 0xee);
  }
  for (int i = 0; i < 4; ++i) {
    _mm256_storeu_ps(to + i * to_stride, _mm256_permute2f128_ps(r[i], r[i + 4], 0x20));
    _mm256_storeu_ps(to + (i + 4) * to_stride, _mm256_permute2f128_ps(r[i], r[i + 4], 0x31));
  }
}
#endif

// to (columns x rows) from `from` (rows x columns).
void transpose(const float* from, int64_t from_stride, int64_t rows, int64_t columns, float* to,
               int64_t to_stride) {
  int64_t r = 0;
#if defined(__AVX2__)
  for (; r + 8 <= rows; r += 8) {
    int64_t c = 0;
    for (; c + 8 <= columns; c += 8) {
      transpose8(from + r * from_stride + c, from_stride, to + c * to_stride + r, to_stride);
    }
    for (; c < columns; ++c) {
      for (int64_t i = r; i < r + 8; ++i) to[c * to_stride + i] = from[i * from_stride + c];
    }
  }
#endif
  for (; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) to[c * to_stride + r] = from[r * from_stride + c];
  }
}

// Tile by tile, so that rows of a tile lie close together: a large power of two between them would
// put all into the same few lines of the cache.
void transpose_tiles(const float* from, int64_t rows, int64_t padded, float* to) {
  for (int64_t r = 0; r < rows; r += kTile) {
    transpose(from + r * padded, padded, least(kTile, rows - r), padded, to + r * padded, kTile);
  }
}

// How many of the keys that may be looked at, in their order, a query sees.
FLEET_INLINE int64_t visible_keys(const AttentionArgs& args, int64_t query) {
  if (!args.causal) return args.key_count;
  const int64_t last = query + args.causal_offset;
  if (!args.keys) return last < 0 ? 0 : least(last + 1, args.key_count);
  int64_t low = 0, high = args.key_count;  // of the keys, those below `low` are seen
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (args.keys[middle] <= last) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

/// A block of up to 64 queries and what its tiles share.
struct QueryBlock {
  int64_t first;
  int64_t count;
  int64_t lanes;  // count, padded to 16, 32 or 64
  int64_t most_keys;
  int64_t fewest_keys;        // all queries see at least these
  int64_t visible[kTile];     // of each query, when they differ
};

FLEET_INLINE QueryBlock query_block(const AttentionArgs& args, int64_t block) {
  QueryBlock b;
  b.first = block * kTile;
  b.count = least(kTile, args.queries - b.first);
  b.lanes = b.count <= 16 ? 16 : b.count <= 32 ? 32 : kTile;
  b.fewest_keys = visible_keys(args, b.first);
  b.most_keys = visible_keys(args, b.first + b.count - 1);
  for (int64_t i = 0; i < kTile; ++i) {
    b.visible[i] = i < b.count ? visible_keys(args, b.first + i) : b.most_keys;
  }
  return b;
}

// The score of a key that a query must not see: a query that sees none has no higher one.
constexpr float kHidden = -3e38f;
// The lowest score of one that it may see: beside any other it is nothing, and alone it is a weight
// like another.
constexpr float kLowest = -2.9e38f;

// The bias of a tile, keys x 64 queries. Lanes beyond the block's queries are left as they are.
const float* bias_tile(const AttentionArgs& args, const QueryBlock& block, int64_t first_key,
                       int64_t keys, float* room) {
  const float* const from = args.bias + block.first * args.bias_stride_q;
  if (!args.keys && args.bias_stride_k == 1) {
    transpose(from + first_key, args.bias_stride_q, block.count, keys, room, kTile);
    return room;
  }
  for (int64_t j = 0; j < keys; ++j) {
    const int64_t key = args.keys ? args.keys[first_key + j] : first_key + j;
    for (int64_t i = 0; i < block.count; ++i) {
      room[j * kTile + i] = from[i * args.bias_stride_q + key * args.bias_stride_k];
    }
  }
  return room;
}

// A score with its bias, minus infinity being the bias of what must not be seen. A NaN stays one.
FLEET_INLINE Floats biased(Floats score, Floats bias) {
  const Floats sum = score + bias * kLog2e;
  const Ints hidden = (bias == splat(-__builtin_inff())) & (sum == sum);
  return choose(hidden, splat(kHidden), larger(splat(kLowest), sum));
}

// Adds the bias to the scores of a tile, and hides what a query must not see.
void mask_scores(const AttentionArgs& args, const QueryBlock& block, int64_t first_key,
                 int64_t keys, float* scores, float* room) {
  if (args.bias && args.bias_stride_q == 0) {
    for (int64_t j = 0; j < keys; ++j) {
      const int64_t key = args.keys ? args.keys[first_key + j] : first_key + j;
      const Floats bias = splat(args.bias[key * args.bias_stride_k]);
      for (int64_t i = j * kTile; i < j * kTile + block.lanes; i += kLanes) {
        store(scores + i, biased(load(scores + i), bias));
      }
    }
  } else if (args.bias) {
    const float* const bias = bias_tile(args, block, first_key, keys, room);
    for (int64_t j = 0; j < keys; ++j) {
      for (int64_t i = j * kTile; i < j * kTile + block.count; i += kLanes) {
        store(scores + i, biased(load(scores + i), load(bias + i)));
      }
    }
  }
  if (first_key + keys <= block.fewest_keys) return;
  for (int64_t j = 0; j < keys; ++j) {
    for (int64_t i = 0; i < block.count; ++i) {
      if (first_key + j >= block.visible[i]) scores[j * kTile + i] = kHidden;
    }
  }
}

// Which of the 64 queries keep their weights, for each key of a tile.
FLEET_INLINE void tile_masks(const AttentionArgs& args, const RandomStream& stream, int64_t first,
                             int64_t keys, int64_t block, KeepMask* masks) {
  const auto number = [&](int64_t j) __attribute__((always_inline)) {
    const auto key = static_cast<uint32_t>(args.keys ? args.keys[first + j] : first + j);
    return static_cast<uint32_t>(block) << 17 | key;
  };
  int64_t j = 0;
  for (; j + 2 <= keys; j += 2) {
    keep_masks(stream, args.sample, number(j), number(j + 1), masks + j);
  }
  if (j < keys) masks[j] = keep_mask(stream, args.sample, number(j));
}

// The queries of a tile: the largest score so far, the sum of the weights relative to it.
struct SoftmaxState {
  alignas(64) float most[kTile];
  alignas(64) float sum[kTile];
};

// Turns the scores of a tile into weights, with those dropped that are; what was added up before has
// to be multiplied by `correction`.
template <int64_t Lanes>
void softmax_tile(const AttentionArgs& args, const RandomStream& stream, int64_t first, int64_t keys,
                  int64_t block, float* scores, SoftmaxState& state, float* correction) {
  constexpr int64_t kRegisters = Lanes / kLanes;
  Floats most[kRegisters], sum[kRegisters];
#pragma GCC unroll 16
  for (int64_t c = 0; c < kRegisters; ++c) most[c] = load(state.most + c * kLanes);
  for (int64_t j = 0; j < keys; ++j) {
#pragma GCC unroll 16
    for (int64_t c = 0; c < kRegisters; ++c) {
      most[c] = larger(most[c], load(scores + j * kTile + c * kLanes));
    }
  }
#pragma GCC unroll 16
  for (int64_t c = 0; c < kRegisters; ++c) {
    const Floats factor = exp2_of(load(state.most + c * kLanes) - most[c]);
    store(correction + c * kLanes, factor);
    sum[c] = load(state.sum + c * kLanes) * factor;
    store(state.most + c * kLanes, most[c]);
  }
  if (stream.drops()) {
    KeepMask masks[kTile];
    tile_masks(args, stream, first, keys, block, masks);
    for (int64_t j = 0; j < keys; ++j) {
#pragma GCC unroll 16
      for (int64_t c = 0; c < kRegisters; ++c) {
        float* const place = scores + j * kTile + c * kLanes;
        const Floats weight = exp2_of(load(place) - load(state.most + c * kLanes));
        sum[c] += weight;
        store(place, where(masks[j], c, weight));
      }
    }
  } else {
    for (int64_t j = 0; j < keys; ++j) {
#pragma GCC unroll 16
      for (int64_t c = 0; c < kRegisters; ++c) {
        float* const place = scores + j * kTile + c * kLanes;
        const Floats weight = exp2_of(load(place) - load(state.most + c * kLanes));
        sum[c] += weight;
        store(place, weight);
      }
    }
  }
#pragma GCC unroll 16
  for (int64_t c = 0; c < kRegisters; ++c) store(state.sum + c * kLanes, sum[c]);
}

// rows of 64 times a factor for each column.
FLEET_INLINE void scale_columns(float* data, int64_t rows, int64_t lanes, const float* factor) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < lanes; i += kLanes) {
      store(data + r * kTile + i, load(data + r * kTile + i) * load(factor + i));
    }
  }
}

template <typename T>
void attention(const AttentionArgs& args, int64_t begin, int64_t end) {
  const AttentionScratch s(args.scratch, args.key_count, args.width);
  RandomStream stream = *args.stream;
  stream.site |= args.head << 16;
  const Rows<T> k{static_cast<const T*>(args.k), args.k_stride, args.keys};
  const Rows<T> v{static_cast<const T*>(args.v), args.v_stride, args.keys};
  copy_rows(k, args.key_count, args.width, 1.0f, s.k, s.padded);
  copy_rows(v, args.key_count, args.width, 1.0f, s.v, s.padded);
  transpose_tiles(s.v, args.key_count, s.padded, s.vt);
  for (int64_t b = begin; b < end; ++b) {
    const auto block = query_block(args, b);
    const Rows<T> q{static_cast<const T*>(args.q) + block.first * args.q_stride, args.q_stride,
                    nullptr};
    copy_rows(q, block.count, args.width, args.scale * kLog2e, s.q, s.padded);
    for (int64_t i = block.count * s.padded; i < block.lanes * s.padded; ++i) s.q[i] = 0;
    transpose(s.q, s.padded, block.lanes, s.padded, s.qt, kTile);
    SoftmaxState state;
    alignas(64) float correction[kTile];
    for (int64_t i = 0; i < kTile; ++i) {
      state.most[i] = kHidden;
      state.sum[i] = 0;
    }
    const auto softmax = block.lanes == 16   ? softmax_tile<16>
                         : block.lanes == 32 ? softmax_tile<32>
                                             : softmax_tile<64>;
    for (int64_t first = 0; first < block.most_keys; first += kTile) {
      const int64_t keys = least(kTile, block.most_keys - first);
      product<false>(s.k + first * s.padded, s.padded, s.qt, kTile, s.scores, kTile, keys,
                     block.lanes, s.padded);
      if (args.bias || first + keys > block.fewest_keys) {
        mask_scores(args, block, first, keys, s.scores, s.weights);
      }
      softmax(args, stream, first, keys, b, s.scores, state, correction);
      const float* const vt = s.vt + first * s.padded;
      if (first == 0) {
        product<false>(vt, kTile, s.scores, kTile, s.out_t, kTile, s.padded, block.lanes, keys);
      } else {
        scale_columns(s.out_t, s.padded, block.lanes, correction);
        product<true>(vt, kTile, s.scores, kTile, s.out_t, kTile, s.padded, block.lanes, keys);
      }
    }
    for (int64_t i = 0; i < kTile; ++i) correction[i] = stream.scale / state.sum[i];
    scale_columns(s.out_t, s.padded, block.lanes, correction);
    transpose(s.out_t, kTile, s.padded, block.lanes, s.q, s.padded);
    for (int64_t i = 0; i < block.count; ++i) {
      T* out = static_cast<T*>(args.out) + (block.first + i) * args.out_stride;
      const bool sees_nothing = state.most[i] == kHidden;
      for (int64_t d = 0; d < args.width; d += kLanes) {
        store(out + d, sees_nothing ? Floats{} : load(s.q + i * s.padded + d), args.width - d);
      }
      // Without keys: so high that backward finds no weights.
      args.lse[block.first + i] =
          sees_nothing ? -kHidden : state.most[i] + __builtin_log2f(state.sum[i]);
    }
  }
}

// The weights of a tile and the slopes of its scores, from the scores (times log2(e)) and dO V^T.
template <int64_t Lanes>
void slopes_tile(const AttentionArgs& args, const RandomStream& stream, int64_t first, int64_t keys,
                 int64_t block, const float* scores, const float* lse, const float* delta,
                 float* weights, float* slopes) {
  if (!stream.drops()) {
    for (int64_t j = 0; j < keys; ++j) {
#pragma GCC unroll 16
      for (int64_t i = 0; i < Lanes; i += kLanes) {
        const int64_t place = j * kTile + i;
        const Floats weight = exp2_of(load(scores + place) - load(lse + i));
        store(weights + place, weight);
        store(slopes + place, weight * (load(slopes + place) - load(delta + i)));
      }
    }
    return;
  }
  const Floats scale = splat(stream.scale);
  KeepMask masks[kTile];
  tile_masks(args, stream, first, keys, block, masks);
  for (int64_t j = 0; j < keys; ++j) {
#pragma GCC unroll 16
    for (int64_t i = 0; i < Lanes; i += kLanes) {
      const int64_t place = j * kTile + i;
      const Floats mask = where(masks[j], i / kLanes, scale);
      const Floats weight = exp2_of(load(scores + place) - load(lse + i));
      store(weights + place, weight * mask);
      store(slopes + place, weight * (load(slopes + place) * mask - load(delta + i)));
    }
  }
}

// With P the weights before dropout, M the mask times its scale, D = rowsum(dO * O):
//   dV = (P M)^T dO,  dS = P (M (dO V^T) - D),  dQ = scale dS K,  dK = scale dS^T Q.
template <typename T>
void attention_backward(const AttentionArgs& args, int64_t begin, int64_t end) {
  const AttentionScratch s(args.scratch, args.key_count, args.width);
  RandomStream stream = *args.stream;
  stream.site |= args.head << 16;
  const Rows<T> k{static_cast<const T*>(args.k), args.k_stride, args.keys};
  const Rows<T> v{static_cast<const T*>(args.v), args.v_stride, args.keys};
  copy_rows(k, args.key_count, args.width, 1.0f, s.k, s.padded);
  copy_rows(v, args.key_count, args.width, 1.0f, s.v, s.padded);
  transpose_tiles(s.k, args.key_count, s.padded, s.kt);
  for (int64_t b = begin; b < end; ++b) {
    const auto block = query_block(args, b);
    const Rows<T> q{static_cast<const T*>(args.q) + block.first * args.q_stride, args.q_stride,
                    nullptr};
    const Rows<T> out{static_cast<const T*>(args.out) + block.first * args.out_stride,
                      args.out_stride, nullptr};
    const Rows<T> dout{static_cast<const T*>(args.dout) + block.first * args.dout_stride,
                       args.dout_stride, nullptr};
    // Times log2(e) for the scores, without it for dK.
    copy_rows(q, block.count, args.width, args.scale * kLog2e, s.q, s.padded);
    copy_rows(dout, block.count, args.width, 1.0f, s.dout, s.padded);
    for (int64_t i = block.count * s.padded; i < block.lanes * s.padded; ++i) {
      s.q[i] = 0;
      s.dout[i] = 0;
    }
    transpose(s.q, s.padded, block.lanes, s.padded, s.qt, kTile);
    transpose(s.dout, s.padded, block.lanes, s.padded, s.dout_t, kTile);
    for (int64_t i = 0; i < block.count * s.padded; i += kLanes) {
      store(s.q + i, load(s.q + i) * (1 / kLog2e));
    }
    alignas(64) float lse[kTile], delta[kTile];
    for (int64_t i = 0; i < kTile; ++i) {
      lse[i] = i < block.count ? args.lse[block.first + i] : 0.0f;
      Floats dots = {};
      if (i < block.count) {
        for (int64_t d = 0; d < args.width; d += kLanes) {
          dots += load(out[i] + d, args.width - d) * load(s.dout + i * s.padded + d);
        }
      }
      delta[i] = sum_of(dots);
    }
    const auto slopes = block.lanes == 16   ? slopes_tile<16>
                        : block.lanes == 32 ? slopes_tile<32>
                                            : slopes_tile<64>;
    for (int64_t i = 0; i < s.padded * kTile; ++i) s.out_t[i] = 0;  // dQ^T
    for (int64_t first = 0; first < block.most_keys; first += kTile) {
      const int64_t keys = least(kTile, block.most_keys - first);
      product<false>(s.k + first * s.padded, s.padded, s.qt, kTile, s.scores, kTile, keys,
                     block.lanes, s.padded);
      if (args.bias || first + keys > block.fewest_keys) {
        mask_scores(args, block, first, keys, s.scores, s.weights);
      }
      product<false>(s.v + first * s.padded, s.padded, s.dout_t, kTile, s.slopes, kTile, keys,
                     block.lanes, s.padded);
      slopes(args, stream, first, keys, b, s.scores, lse, delta, s.weights, s.slopes);
      // Beyond `count` the rows of q and dout are zero, whatever the weights there.
      product<true>(s.weights, kTile, s.dout, s.padded, args.dv + first * s.padded, s.padded, keys,
                    s.padded, block.count);
      product<true>(s.slopes, kTile, s.q, s.padded, args.dk + first * s.padded, s.padded, keys,
                    s.padded, block.count);
      product<true>(s.kt + first * s.padded, kTile, s.slopes, kTile, s.out_t, kTile, s.padded, block.lanes,
                    keys);
    }
    transpose(s.out_t, kTile, s.padded, block.lanes, s.q, s.padded);
    for (int64_t i = 0; i < block.count; ++i) {
      T* dq = static_cast<T*>(args.dq) + (block.first + i) * args.dq_stride;
      for (int64_t d = 0; d < args.width; d += kLanes) {
        store(dq + d, load(s.q + i * s.padded + d) * args.scale, args.width - d);
      }
    }
  }
}

// Rows of float to rows of keys, all or those of the list.
template <typename T>
void key_rows(const AttentionArgs& args, const float* from, int64_t padded, void* to,
              int64_t stride) {
  for (int64_t i = 0; i < args.key_count; ++i) {
    T* const row = static_cast<T*>(to) + (args.keys ? args.keys[i] : i) * stride;
    for (int64_t d = 0; d < args.width; d += kLanes) {
      store(row + d, load(from + i * padded + d), args.width - d);
    }
  }
}

}  // namespace
