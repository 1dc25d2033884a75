// SPDX-License-Identifier: Apache-2.0
// Products of float matrices (Goto and van de Geijn, doi 10.1145/1356052.1356053). The right one is
// packed into panels of 32 columns, each contiguous along the depth, for all threads; every thread
// packs a block of its rows of the left one, 8 rows side by side. A tile of 8 x 32 then reads both
// without gaps, with 16 sums in registers: two registers of the panel and 8 broadcasts for 16
// multiply-adds. Panels are cut to a depth at which one stays in the first-level cache, a block of
// rows to what stays in the second.

#if defined(__AVX512F__)
namespace {

using fleet::ops::ProductArgs;

constexpr int64_t kPanelColumns = 32;
constexpr int64_t kPanelDepth = 256;
constexpr int64_t kTileRows = 8;
constexpr int64_t kBlockRows = 24 * kTileRows;

// Of the columns that a register holds at `first`, those below `columns`.
FLEET_INLINE __mmask16 columns_mask(int64_t first, int64_t columns) {
  const int64_t left = columns - first;
  return left >= 16 ? 0xffff : left <= 0 ? 0 : static_cast<__mmask16>((1u << left) - 1);
}

/// Where a tile's result goes: 8 x 32 of c, of which `rows` and `columns` are there.
struct TileTarget {
  float* c;
  int64_t stride;
  int64_t rows;
  int64_t columns;
  const float* bias;  // null: none
  bool adds;          // to what is in c
};

void tile_of_product(const float* a, const float* b, int64_t depth, const TileTarget& to) {
  __m512 sum[kTileRows][2];
#pragma GCC unroll 8
  for (int64_t r = 0; r < kTileRows; ++r) {
    sum[r][0] = sum[r][1] = _mm512_setzero_ps();
    if (r < to.rows) {
      __builtin_prefetch(to.c + r * to.stride, 1);
      __builtin_prefetch(to.c + r * to.stride + 16, 1);
    }
  }
  for (int64_t k = 0; k < depth; ++k) {
    const __m512 first = _mm512_load_ps(b + k * kPanelColumns);
    const __m512 second = _mm512_load_ps(b + k * kPanelColumns + 16);
#pragma GCC unroll 8
    for (int64_t r = 0; r < kTileRows; ++r) {
      const __m512 left = _mm512_set1_ps(a[k * kTileRows + r]);
      sum[r][0] = _mm512_fmadd_ps(left, first, sum[r][0]);
      sum[r][1] = _mm512_fmadd_ps(left, second, sum[r][1]);
    }
  }
#pragma GCC unroll 2
  for (int64_t half = 0; half < 2; ++half) {
    const __mmask16 mask = columns_mask(half * 16, to.columns);
    const __m512 bias = to.bias ? _mm512_maskz_loadu_ps(mask, to.bias + half * 16)
                                : _mm512_setzero_ps();
#pragma GCC unroll 8
    for (int64_t r = 0; r < kTileRows; ++r) {
      if (r >= to.rows) continue;
      float* const place = to.c + r * to.stride + half * 16;
      __m512 result = sum[r][half] + bias;
      if (to.adds) result += _mm512_maskz_loadu_ps(mask, place);
      _mm512_mask_storeu_ps(place, mask, result);
    }
  }
}

// Rows begin ... begin + count of a, depths first ... first + depth: 8 rows side by side, missing
// ones zero. a's rows lie side by side, or the elements of a row do.
void pack_rows(const ProductArgs& args, int64_t begin, int64_t count, int64_t first, int64_t depth,
               float* to) {
  for (int64_t r = 0; r < count; r += kTileRows, to += kTileRows * depth) {
    const int64_t rows = least(kTileRows, count - r);
    const float* const from = args.a + (begin + r) * args.a_row_stride + first * args.a_depth_stride;
    if (args.a_row_stride == 1) {
      const auto mask = static_cast<__mmask8>((1u << rows) - 1);
      for (int64_t k = 0; k < depth; ++k) {
        _mm256_store_ps(to + k * kTileRows,
                        _mm256_maskz_loadu_ps(mask, from + k * args.a_depth_stride));
      }
      continue;
    }
    int64_t k = 0;
    if (rows == kTileRows) {
      for (; k + 8 <= depth; k += 8) {
        transpose8(from + k, args.a_row_stride, to + k * kTileRows, kTileRows);
      }
    }
    for (; k < depth; ++k) {
      for (int64_t i = 0; i < kTileRows; ++i) {
        to[k * kTileRows + i] = i < rows ? from[i * args.a_row_stride + k] : 0.0f;
      }
    }
  }
}

// Panels begin ... end of b, in pieces of kPanelDepth: all panels of the first piece come first.
void pack_panels(const ProductArgs& args, int64_t begin, int64_t end) {
  const int64_t panels = (args.columns + kPanelColumns - 1) / kPanelColumns;
  for (int64_t first = 0; first < args.depth; first += kPanelDepth) {
    const int64_t depth = least(kPanelDepth, args.depth - first);
    for (int64_t p = begin; p < end; ++p) {
      const int64_t column = p * kPanelColumns;
      const int64_t columns = least(kPanelColumns, args.columns - column);
      const float* const from =
          args.b + first * args.b_depth_stride + column * args.b_column_stride;
      float* const to = args.panels + first * panels * kPanelColumns + p * kPanelColumns * depth;
      if (args.b_column_stride == 1) {
        const __mmask16 low = columns_mask(0, columns), high = columns_mask(16, columns);
        for (int64_t k = 0; k < depth; ++k) {
          const float* const row = from + k * args.b_depth_stride;
          _mm512_store_ps(to + k * kPanelColumns, _mm512_maskz_loadu_ps(low, row));
          _mm512_store_ps(to + k * kPanelColumns + 16, _mm512_maskz_loadu_ps(high, row + 16));
        }
      } else if (columns == kPanelColumns) {
        transpose(from, args.b_column_stride, kPanelColumns, depth, to, kPanelColumns);
      } else {
        for (int64_t k = 0; k < depth; ++k) {
          for (int64_t i = 0; i < kPanelColumns; ++i) {
            to[k * kPanelColumns + i] = i < columns ? from[k + i * args.b_column_stride] : 0.0f;
          }
        }
      }
    }
  }
}

int64_t product_panel_floats(int64_t columns, int64_t depth) {
  return round_up(columns, kPanelColumns) * depth;
}

int64_t product_scratch() { return kBlockRows * kPanelDepth; }

void product_rows(const ProductArgs& args, float* scratch, int64_t begin, int64_t end) {
  const int64_t panels = (args.columns + kPanelColumns - 1) / kPanelColumns;
  for (int64_t row = begin; row < end; row += kBlockRows) {
    const int64_t rows = least(kBlockRows, end - row);
    for (int64_t first = 0; first < args.depth; first += kPanelDepth) {
      const int64_t depth = least(kPanelDepth, args.depth - first);
      pack_rows(args, row, rows, first, depth, scratch);
      const float* const piece = args.panels + first * panels * kPanelColumns;
      for (int64_t p = 0; p < panels; ++p) {
        const int64_t column = p * kPanelColumns;
        for (int64_t r = 0; r < rows; r += kTileRows) {
          tile_of_product(scratch + r * depth, piece + column * depth, depth,
                          {.c = args.c + (row + r) * args.c_stride + column,
                           .stride = args.c_stride,
                           .rows = least(kTileRows, rows - r),
                           .columns = args.columns - column,
                           .bias = first == 0 && args.bias ? args.bias + column : nullptr,
                           .adds = first > 0 || args.adds});
        }
      }
    }
  }
}

}  // namespace
#endif
