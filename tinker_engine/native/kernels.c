/* What a decode step and a training step spend their time on, for fp32 on a CPU.

   Compiled for the machine at first use (build.py), called with the addresses of tensors (ops.py). Whatever is
   computed of a row does not depend on the other rows, nor on how many threads there are: a sum is always added up
   by one thread and in one order. Threads take small tasks as they become free, so that one that is held up by
   another program holds up nothing else. */

#include <omp.h>
#include <stdint.h>
#include <string.h>
#include <math.h>

#ifdef __AVX512F__
#define LANES 16
#else
#define LANES 8
#endif

typedef float Vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t Ints __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef double Doubles __attribute__((vector_size(8 * LANES)));
typedef int64_t Index;

#define INLINE static inline __attribute__((always_inline))

INLINE Vec all(float x) { return x - (Vec){}; }
INLINE Vec either(Ints which, Vec a, Vec b) { return (Vec)((which & (Ints)a) | (~which & (Ints)b)); }
INLINE Index least(Index a, Index b) { return a < b ? a : b; }
INLINE Index most(Index a, Index b) { return a > b ? a : b; }
INLINE Index parts(Index whole, Index part) { return (whole + part - 1) / part; }

/* --- matrix products ----------------------------------------------------------------------------

   y[m, n] = x[m, k] · w[n, k], with w packed: its columns in panels of WIDE, k in blocks of DEEP, so that the tile
   below reads it from the first to the last byte. A tile is TALL × WIDE sums, which fill the registers of AVX2. */

#define TALL 4
#define VECS 3
#define WIDE (VECS * LANES)
#define DEEP 192    /* a block of a panel, 18 KB, stays in the first-level cache while rows go by */
#define ROWS 64     /* of x in a task; their block of k stays in the second-level cache while panels go by */
#define PANELS 16   /* in a task, at most */
#define LINE 16     /* floats */

Index te_panel_width(void) { return WIDE; }

/* [k blocks][panels][k of the block][WIDE], zeros beyond n. */
void te_pack(const float *w, Index n, Index k, Index stride_n, Index stride_k, float *packed, int threads)
{
    Index panels = parts(n, WIDE);
#pragma omp parallel for num_threads(threads) schedule(dynamic, 4) if (threads > 1)
    for (Index p = 0; p < panels; p++) {
        Index width = least(WIDE, n - p * WIDE);
        for (Index k0 = 0; k0 < k; k0 += DEEP) {
            Index deep = least(DEEP, k - k0);
            float *to = packed + (k0 * panels + p * deep) * WIDE;
            const float *from = w + p * WIDE * stride_n + k0 * stride_k;
            if (width < WIDE) memset(to, 0, deep * WIDE * sizeof(float));
            if (stride_n == 1) {
                for (Index i = 0; i < deep; i++) memcpy(to + i * WIDE, from + i * stride_k, width * sizeof(float));
            } else {
                for (Index j = 0; j < width; j++)
                    for (Index i = 0; i < deep; i++) to[i * WIDE + j] = from[j * stride_n + i * stride_k];
            }
        }
    }
}

typedef struct {
    const float *x;
    Index stride_m, stride_k;
    const float *w, *next; /* the block of the panel, and what will be read after it */
    float *y;
    Index stride_y;
    Index deep;
    int add; /* to what is in y */
    float scale;
} Tile;

INLINE void tile(int tall, int unit_k, Tile t)
{
    Vec sum[TALL][VECS] = {};
#pragma GCC unroll 4
    for (Index k = 0; k < t.deep; k++) {
        const Vec *w = (const Vec *)(t.w + k * WIDE);
#pragma GCC unroll 4
        for (int i = 0; i < tall; i++) {
            Vec x = all(t.x[i * t.stride_m + (unit_k ? k : k * t.stride_k)]);
#pragma GCC unroll 3
            for (int j = 0; j < VECS; j++) sum[i][j] += x * w[j];
        }
        if (k % 4 == 0) __builtin_prefetch(t.next + k / 4 * LINE, 0, 2);
    }
#pragma GCC unroll 4
    for (int i = 0; i < tall; i++) {
        Vec *y = (Vec *)(t.y + i * t.stride_y);
#pragma GCC unroll 3
        for (int j = 0; j < VECS; j++) y[j] = t.add ? y[j] + t.scale * sum[i][j] : t.scale * sum[i][j];
    }
}

/* The rows of a task, against one block of one panel. */
INLINE void tiles(int unit_k, Index rows, Tile t)
{
    Index ahead = least(DEEP / 4, parts(t.deep * WIDE / LINE, parts(rows, TALL))) * LINE;
    for (; rows >= TALL; rows -= TALL) {
        tile(TALL, unit_k, t);
        t.x += TALL * t.stride_m, t.y += TALL * t.stride_y, t.next += ahead;
    }
    if (rows == 3) tile(3, unit_k, t);
    if (rows == 2) tile(2, unit_k, t);
    if (rows == 1) tile(1, unit_k, t);
}

static void block(Index rows, Index width, Tile t)
{
    float edge[ROWS * WIDE], *y = t.y;
    if (width < WIDE) { /* the last panel: its tiles are wider than y */
        if (t.add)
            for (Index i = 0; i < rows; i++) memcpy(edge + i * WIDE, y + i * t.stride_y, width * sizeof(float));
        Index stride = t.stride_y;
        t.y = edge, t.stride_y = WIDE;
        if (t.stride_k == 1) tiles(1, rows, t); else tiles(0, rows, t);
        for (Index i = 0; i < rows; i++) memcpy(y + i * stride, edge + i * WIDE, width * sizeof(float));
    } else if (t.stride_k == 1) {
        tiles(1, rows, t);
    } else {
        tiles(0, rows, t);
    }
}

typedef struct {
    const float *data;
    Index panels, deep; /* of the whole weight: panels of n, and k */
} Packed;

/* y = scale · x wᵀ, or y += scale · x wᵀ, for at most ROWS rows, panels first to end of n, and the first k of the
   weight's. */
static void multiply(const float *x, Index stride_m, Index stride_k, Packed w, float *y, Index stride_y, Index rows,
                     Index first, Index end, Index n, Index k, float scale, int add)
{
    for (Index k0 = 0; k0 < k; k0 += DEEP) {
        Index deep = least(DEEP, w.deep - k0), k1 = k0 + deep;
        for (Index p = first; p < end; p++) {
            const float *at = w.data + (k0 * w.panels + p * deep) * WIDE;
            Tile t = {x + k0 * stride_k, stride_m, stride_k, at, at + deep * WIDE, y + p * WIDE, stride_y,
                      least(deep, k - k0), add || k0 > 0, scale};
            if (p + 1 == end && k1 < k) t.next = w.data + (k1 * w.panels + first * least(DEEP, w.deep - k1)) * WIDE;
            block(rows, least(WIDE, n - p * WIDE), t);
        }
    }
}

void te_product(const float *x, Index stride_m, Index stride_k, const float *packed, float *y, Index stride_y,
                Index m, Index n, Index k, float scale, int add, int threads)
{
    Index panels = parts(n, WIDE), heights = parts(m, ROWS);
    Index group = most(1, least(PANELS, heights * panels / (8 * threads)));
    Index groups = parts(panels, group);
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1) if (threads > 1)
    for (Index task = 0; task < heights * groups; task++) {
        Index m0 = task / groups * ROWS, first = task % groups * group;
        multiply(x + m0 * stride_m, stride_m, stride_k, (Packed){packed, panels, k}, y + m0 * stride_y, stride_y,
                 least(ROWS, m - m0), first, least(panels, first + group), n, k, scale, add);
    }
}

/* y[m, n] = scale · Σ x[t, m] w[t, n]: the gradient of a weight, by panels of w that are packed on the way. */
void te_gradient(const float *x, Index stride_x, const float *w, Index stride_w, float *y, Index stride_y,
                 Index tokens, Index m, Index n, float scale, int threads)
{
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1) if (threads > 1)
    for (Index p = 0; p < parts(n, WIDE); p++) {
        Index width = least(WIDE, n - p * WIDE);
        float packed[DEEP * WIDE];
        if (width < WIDE) memset(packed, 0, sizeof(packed));
        for (Index t0 = 0; t0 < tokens; t0 += DEEP) {
            Index deep = least(DEEP, tokens - t0);
            for (Index t = 0; t < deep; t++)
                memcpy(packed + t * WIDE, w + (t0 + t) * stride_w + p * WIDE, width * sizeof(float));
            for (Index m0 = 0; m0 < m; m0 += ROWS) {
                Tile t = {x + t0 * stride_x + m0, 1, stride_x, packed, packed, y + m0 * stride_y + p * WIDE, stride_y,
                          deep, t0 > 0, scale};
                block(least(ROWS, m - m0), width, t);
            }
        }
    }
}

/* --- element by element ------------------------------------------------------------------------- */

/* e^x to about one unit in the last place: 2^n · e^r with |r| ≤ ln 2 / 2. Zero below −87. */
INLINE Vec exponential(Vec x)
{
    Ints gone = x < -87.0f;
    x = either(gone, all(-87.0f), x);
    x = either(x > 88.0f, all(88.0f), x);
    Vec shift = all(12582912.0f); /* 1.5 · 2^23: adding it rounds to whole numbers */
    Vec n = (x * 1.44269504f + shift) - shift;
    Vec r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    Vec p = all(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    Ints bits = (__builtin_convertvector(n, Ints) + 127) << 23;
    return either(gone, (Vec){}, p * (Vec)bits);
}

INLINE float added_up(Vec x)
{
#pragma GCC unroll 4
    for (int half = LANES / 2; half > 0; half /= 2)
#pragma GCC unroll 8
        for (int i = 0; i < half; i++) x[i] += x[i + half];
    return x[0];
}

/* Widths are multiples of LANES from here on. */

INLINE float largest(const float *x, Index width, Vec high)
{
    for (Index j = 0; j < width; j += LANES) high = either(*(Vec *)(x + j) > high, *(Vec *)(x + j), high);
    float top = high[0];
    for (int j = 1; j < LANES; j++) top = high[j] > top ? high[j] : top;
    return top;
}

/* x = e^(x − shift); returns the sum. */
INLINE float exponentials(float *x, Index width, float shift)
{
    Vec sum = {};
    for (Index j = 0; j < width; j += LANES) {
        Vec e = exponential(*(Vec *)(x + j) - shift);
        *(Vec *)(x + j) = e;
        sum += e;
    }
    return added_up(sum);
}

void te_rms_norm(const float *x, Index stride_x, const float *weight, float *y, float *inverse_rms, Index rows,
                 Index width, float eps, int threads)
{
#pragma omp parallel for num_threads(threads) schedule(dynamic, 16) if (threads > 1)
    for (Index i = 0; i < rows; i++) {
        const float *from = x + i * stride_x;
        float *to = y + i * width;
        Vec squares = {};
        for (Index j = 0; j < width; j += LANES) squares += *(Vec *)(from + j) * *(Vec *)(from + j);
        float inverse = 1 / sqrtf(added_up(squares) / width + eps);
        for (Index j = 0; j < width; j += LANES) *(Vec *)(to + j) = *(Vec *)(from + j) * inverse * *(Vec *)(weight + j);
        if (inverse_rms) inverse_rms[i] = inverse;
    }
}

/* dx = (dy·w − u · mean(dy·w·u)) / rms, where u = x / rms. */
void te_rms_norm_backward(const float *dy, const float *x, const float *weight, const float *inverse_rms, float *dx,
                          Index rows, Index width, int threads)
{
#pragma omp parallel for num_threads(threads) schedule(dynamic, 16) if (threads > 1)
    for (Index i = 0; i < rows; i++) {
        const float *d = dy + i * width, *from = x + i * width;
        float inverse = inverse_rms[i];
        Vec along = {};
        for (Index j = 0; j < width; j += LANES)
            along += *(Vec *)(d + j) * *(Vec *)(weight + j) * *(Vec *)(from + j);
        float mean = added_up(along) * inverse * inverse / width;
        for (Index j = 0; j < width; j += LANES)
            *(Vec *)(dx + i * width + j) = (*(Vec *)(d + j) * *(Vec *)(weight + j) - *(Vec *)(from + j) * mean) * inverse;
    }
}

/* silu(gate) · up, of rows that hold both. */
void te_swiglu(const float *gate_up, float *y, Index rows, Index width, int threads)
{
#pragma omp parallel for num_threads(threads) schedule(dynamic, 8) if (threads > 1)
    for (Index i = 0; i < rows; i++) {
        const float *gate = gate_up + 2 * i * width, *up = gate + width;
        for (Index j = 0; j < width; j += LANES) {
            Vec g = *(Vec *)(gate + j);
            *(Vec *)(y + i * width + j) = g / (1.0f + exponential(-g)) * *(Vec *)(up + j);
        }
    }
}

/* d silu(g)/dg = σ(g) · (1 + g · (1 − σ(g))) */
void te_swiglu_backward(const float *dy, const float *gate_up, float *d_gate_up, Index rows, Index width, int threads)
{
#pragma omp parallel for num_threads(threads) schedule(dynamic, 8) if (threads > 1)
    for (Index i = 0; i < rows; i++) {
        const float *gate = gate_up + 2 * i * width, *up = gate + width;
        float *to = d_gate_up + 2 * i * width;
        for (Index j = 0; j < width; j += LANES) {
            Vec g = *(Vec *)(gate + j), d = *(Vec *)(dy + i * width + j);
            Vec sigmoid = 1.0f / (1.0f + exponential(-g));
            *(Vec *)(to + j) = d * *(Vec *)(up + j) * (sigmoid * (1.0f + g * (1.0f - sigmoid)));
            *(Vec *)(to + width + j) = d * g * sigmoid;
        }
    }
}

/* Turns plane i, made of components i and i + half, by its angle (by −angle if `back`). half is a multiple of LANES. */
void te_rotate(const float *x, Index stride_x, const float *cosines, const float *sines, float *y, Index rows,
               Index heads, Index half, int back, int threads)
{
#pragma omp parallel for num_threads(threads) schedule(dynamic, 16) if (threads > 1)
    for (Index i = 0; i < rows; i++)
        for (Index j = 0; j < half; j += LANES) {
            Vec cosine = *(Vec *)(cosines + i * half + j), sine = *(Vec *)(sines + i * half + j);
            sine = back ? -sine : sine;
            for (Index h = 0; h < heads; h++) {
                const float *from = x + i * stride_x + 2 * h * half + j;
                float *to = y + 2 * (i * heads + h) * half + j;
                Vec low = *(Vec *)from, high = *(Vec *)(from + half);
                *(Vec *)to = low * cosine - high * sine;
                *(Vec *)(to + half) = high * cosine + low * sine;
            }
        }
}

/* A vector whose last elements are beyond the end of the row. */
INLINE Vec partial(const float *x, Index there, float beyond)
{
    Vec v = all(beyond);
    for (Index i = 0; i < there; i++) v[i] = x[i];
    return v;
}

/* log Σ e^x of each row; any width. In double precision: a vocabulary has many terms that would each be lost. */
void te_log_sum_exp(const float *x, float *y, Index rows, Index width, int threads)
{
    Index whole = width / LANES * LANES;
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1) if (threads > 1)
    for (Index i = 0; i < rows; i++) {
        const float *from = x + i * width;
        Vec last = partial(from + whole, width - whole, -INFINITY);
        float top = largest(from, whole, last);
        Doubles sum = {};
        for (Index j = 0; j < whole; j += LANES)
            sum += __builtin_convertvector(exponential(*(Vec *)(from + j) - top), Doubles);
        sum += __builtin_convertvector(exponential(last - top), Doubles);
        double total = 0;
        for (int j = 0; j < LANES; j++) total += sum[j];
        y[i] = top + log(total);
    }
}

/* x = e^(x − shift) · factor, with a shift and a factor for each row; any width. */
void te_scaled_exp(float *x, const float *shift, const float *factor, Index rows, Index width, int threads)
{
    Index whole = width / LANES * LANES;
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1) if (threads > 1)
    for (Index i = 0; i < rows; i++) {
        float *at = x + i * width;
        for (Index j = 0; j < whole; j += LANES)
            *(Vec *)(at + j) = exponential(*(Vec *)(at + j) - shift[i]) * factor[i];
        Vec last = exponential(partial(at + whole, width - whole, 0) - shift[i]) * factor[i];
        for (Index j = whole; j < width; j++) at[j] = last[j - whole];
    }
}

/* --- attention of one new token per row --------------------------------------------------------- */

/* Where the keys and values of a row are: those of a prefix that it may share with others, then its own. */
typedef struct {
    float *prefix;
    Index prefix_tokens, prefix_layer, prefix_values, prefix_group; /* distances in floats */
    float *own;
    Index own_tokens, own_layer, own_values, own_group;
} Keys;

/* Scores of `count` keys for one query. */
INLINE void score(const float *q, const float *k, Index count, Index width, float scale, float *scores)
{
    for (Index t = 0; t < count; t++) {
        Vec even = {}, odd = {};
        Index e = 0;
        for (; e + 2 * LANES <= width; e += 2 * LANES) {
            even += *(Vec *)(q + e) * *(Vec *)(k + t * width + e);
            odd += *(Vec *)(q + e + LANES) * *(Vec *)(k + t * width + e + LANES);
        }
        if (e < width) even += *(Vec *)(q + e) * *(Vec *)(k + t * width + e);
        scores[t] = added_up(even + odd) * scale;
    }
}

/* out[vecs · LANES] += Σ weight · value */
INLINE void gather(int vecs, const float *weights, const float *v, Index count, Index width, float *out)
{
    Vec sum[8];
    for (int j = 0; j < vecs; j++) sum[j] = ((Vec *)out)[j];
    for (Index t = 0; t < count; t++) {
        Vec weight = all(weights[t]);
#pragma GCC unroll 8
        for (int j = 0; j < vecs; j++) sum[j] += weight * ((Vec *)(v + t * width))[j];
    }
    for (int j = 0; j < vecs; j++) ((Vec *)out)[j] = sum[j];
}

static void gather_all(const float *weights, const float *v, Index count, Index width, float *out)
{
    Index e = 0;
    for (; e + 8 * LANES <= width; e += 8 * LANES) gather(8, weights, v + e, count, width, out + e);
    for (; e + 2 * LANES <= width; e += 2 * LANES) gather(2, weights, v + e, count, width, out + e);
    if (e < width) gather(1, weights, v + e, count, width, out + e);
}

/* q: rows of [heads, width]; k, v: rows of [groups, width], which are put behind the row's own keys.
   scores: room for most_tokens, a multiple of LANES, per thread. */
void te_attend(const float *q, Index stride_q, const float *k, Index stride_k, const float *v, Index stride_v,
               float *out, const Keys *rows_keys, Index layer, Index rows, Index heads, Index groups, Index width,
               float scale, float *scores, Index most_tokens, int threads)
{
    Index repeat = heads / groups;
#pragma omp parallel for num_threads(threads) schedule(dynamic, 2) if (threads > 1)
    for (Index task = 0; task < rows * groups; task++) {
        Index g = task / rows, row = task % rows; /* neighbours share a prefix */
        Keys at = rows_keys[row];
        const float *prefix = at.prefix + layer * at.prefix_layer + g * at.prefix_group;
        float *own = at.own + layer * at.own_layer + g * at.own_group;
        memcpy(own + at.own_tokens * width, k + row * stride_k + g * width, width * sizeof(float));
        memcpy(own + at.own_values + at.own_tokens * width, v + row * stride_v + g * width, width * sizeof(float));
        Index before = at.prefix_tokens, after = at.own_tokens + 1, tokens = before + after;
        Index whole = parts(tokens, LANES) * LANES;
        for (Index i = 0; i < repeat; i++) {
            Index head = g * repeat + i;
            const float *query = q + row * stride_q + head * width;
            float *s = scores + omp_get_thread_num() * most_tokens, *to = out + (row * heads + head) * width;
            if (before) score(query, prefix, before, width, scale, s);
            score(query, own, after, width, scale, s + before);
            for (Index t = tokens; t < whole; t++) s[t] = -INFINITY;
            float share = 1 / exponentials(s, whole, largest(s, whole, all(-INFINITY)));
            memset(to, 0, width * sizeof(float));
            if (before) gather_all(s, prefix + at.prefix_values, before, width, to);
            gather_all(s + before, own + at.own_values, after, width, to);
            for (Index e = 0; e < width; e += LANES) *(Vec *)(to + e) *= share;
        }
    }
}

/* --- attention of whole sequences ---------------------------------------------------------------

   Tokens lie on one axis. The queries of a segment are neighbours on it; each sees the keys of its segment up to itself,
   and before them all keys of the segments that it goes on from. */

typedef struct {
    Index query, queries; /* rows of the queries */
    Index key, keys;      /* where the list of visible rows is, and its length; the last of them are the queries' own */
} Segment;

typedef struct {
    const float *data;
    Index stride; /* from row to row */
} Rows;

INLINE Index padded(Index n) { return parts(n, WIDE) * WIDE; }

/* Of the listed rows, as a weight [listed rows, width]. */
static Packed pack_rows(Rows from, const Index *rows, Index count, Index width, float *to)
{
    Index panels = parts(count, WIDE);
    if (count % WIDE)
        for (Index k0 = 0; k0 < width; k0 += DEEP) {
            Index deep = least(DEEP, width - k0);
            memset(to + (k0 * panels + (panels - 1) * deep) * WIDE, 0, deep * WIDE * sizeof(float));
        }
    for (Index j = 0; j < count; j++) {
        const float *row = from.data + rows[j] * from.stride;
        for (Index k0 = 0; k0 < width; k0 += DEEP) {
            Index deep = least(DEEP, width - k0);
            float *column = to + (k0 * panels + j / WIDE * deep) * WIDE + j % WIDE;
            for (Index e = 0; e < deep; e++) column[e * WIDE] = row[k0 + e];
        }
    }
    return (Packed){to, panels, width};
}

/* Of the listed rows, or of `count` neighbours, as a weight [width, listed rows]. */
static Packed pack_columns(Rows from, const Index *rows, Index count, Index width, float *to)
{
    Index panels = parts(width, WIDE);
    for (Index j = 0; j < count; j++) {
        const float *row = from.data + (rows ? rows[j] : j) * from.stride;
        Index k0 = j / DEEP * DEEP, deep = least(DEEP, count - k0);
        for (Index p = 0; p < panels; p++) {
            float *at = to + (k0 * panels + p * deep + j - k0) * WIDE;
            Index there = least(WIDE, width - p * WIDE);
            memcpy(at, row + p * WIDE, there * sizeof(float));
            if (there < WIDE) memset(at + there, 0, (WIDE - there) * sizeof(float));
        }
    }
    return (Packed){to, panels, count};
}

/* Floats of scratch that a thread needs for segments of at most so many keys. */
Index te_attention_room(Index keys, Index width)
{
    Index edge = padded(width);
    return 2 * (padded(keys) * width) + edge * keys + 2 * ROWS * padded(keys) + 2 * edge * ROWS + 4 * LINE;
}

/* The scores of some queries of one head: rows of `stride`, of which those beyond the last visible key are −∞. */
static void scores(const float *q, Index stride_q, Packed keys, Index visible, Index rows, float scale, float *s,
                   Index stride)
{
    Index panels = parts(visible, WIDE);
    multiply(q, stride_q, 1, keys, s, stride, rows, 0, panels, panels * WIDE, keys.deep, scale, 0);
    for (Index i = 0; i < rows; i++)
        for (Index j = visible - rows + i + 1; j < panels * WIDE; j++) s[i * stride + j] = -INFINITY;
}

void te_attention(const float *q, Index stride_q, const float *k, Index stride_k, const float *v, Index stride_v,
                  float *out, float *lse, const Segment *segments, Index count, const Index *keys, Index heads,
                  Index groups, Index width, float scale, float *scratch, Index room, int threads)
{
    Index repeat = heads / groups;
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1) if (threads > 1)
    for (Index task = 0; task < count * groups; task++) {
        Segment at = segments[task / groups];
        Index g = task % groups, stride = padded(at.keys);
        float *mine = scratch + omp_get_thread_num() * room;
        Rows k_rows = {k + g * width, stride_k}, v_rows = {v + g * width, stride_v};
        Packed k_all = pack_rows(k_rows, keys + at.key, at.keys, width, mine);
        Packed v_all = pack_columns(v_rows, keys + at.key, at.keys, width, mine + stride * width);
        float *s = mine + stride * width + padded(width) * at.keys;
        for (Index h = g * repeat; h < (g + 1) * repeat; h++)
            for (Index first = 0; first < at.queries; first += ROWS) {
                Index rows = least(ROWS, at.queries - first), visible = at.keys - at.queries + first + rows;
                Index row = at.query + first, whole = padded(visible);
                scores(q + row * stride_q + h * width, stride_q, k_all, visible, rows, scale, s, stride);
                float share[ROWS];
                for (Index i = 0; i < rows; i++) {
                    float *line = s + i * stride;
                    float top = largest(line, whole, all(-INFINITY)), total = exponentials(line, whole, top);
                    share[i] = 1 / total;
                    lse[(row + i) * heads + h] = top + logf(total);
                }
                float *to = out + (row * heads + h) * width;
                multiply(s, stride, 1, v_all, to, heads * width, rows, 0, v_all.panels, width, visible, 1, 0);
                for (Index i = 0; i < rows; i++)
                    for (Index e = 0; e < width; e += LANES) *(Vec *)(to + i * heads * width + e) *= share[i];
            }
    }
}

/* Gradients of the queries, and of the keys and values as each segment sees them: d_keys and d_values have a line
   [groups · split, width] for every entry of the lists of rows. `split` is 1, or heads / groups for more tasks. */
void te_attention_backward(const float *d_out, const float *q, Index stride_q, const float *k, Index stride_k,
                           const float *v, Index stride_v, const float *out, const float *lse, float *dq,
                           float *d_keys, float *d_values, const Segment *segments, Index count, const Index *keys,
                           Index heads, Index groups, Index width, Index split, float scale, float *scratch,
                           Index room, int threads)
{
    Index columns = groups * split, together = heads / columns, line = heads * width, wide_line = columns * width;
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1) if (threads > 1)
    for (Index task = 0; task < count * columns; task++) {
        Segment at = segments[task / columns];
        Index column = task % columns, g = column / split, stride = padded(at.keys), edge = padded(width);
        const Index *list = keys + at.key;
        float *mine = scratch + omp_get_thread_num() * room;
        Rows k_rows = {k + g * width, stride_k}, v_rows = {v + g * width, stride_v};
        Packed k_all = pack_rows(k_rows, list, at.keys, width, mine);
        Packed v_all = pack_rows(v_rows, list, at.keys, width, mine += stride * width);
        Packed k_columns = pack_columns(k_rows, list, at.keys, width, mine += stride * width);
        float *p = mine += edge * at.keys, *dp = p + ROWS * stride, *packed = dp + ROWS * stride;
        float *dk = d_keys + (at.key * columns + column) * width, *dv = d_values + (at.key * columns + column) * width;
        for (Index j = 0; j < at.keys; j++) {
            memset(dk + j * wide_line, 0, width * sizeof(float));
            memset(dv + j * wide_line, 0, width * sizeof(float));
        }
        for (Index h = column * together; h < (column + 1) * together; h++)
            for (Index first = 0; first < at.queries; first += ROWS) {
                Index rows = least(ROWS, at.queries - first), visible = at.keys - at.queries + first + rows;
                Index row = at.query + first, panels = parts(visible, WIDE), whole = panels * WIDE;
                const float *q_at = q + row * stride_q + h * width, *d_at = d_out + row * line + h * width;
                const float *out_at = out + row * line + h * width;
                scores(q_at, stride_q, k_all, visible, rows, scale, p, stride);
                multiply(d_at, line, 1, v_all, dp, stride, rows, 0, panels, whole, width, 1, 0);
                for (Index i = 0; i < rows; i++) {
                    Vec along = {};
                    for (Index e = 0; e < width; e += LANES)
                        along += *(Vec *)(d_at + i * line + e) * *(Vec *)(out_at + i * line + e);
                    float mean = added_up(along), shift = lse[(row + i) * heads + h];
                    for (Index j = i * stride; j < i * stride + whole; j += LANES) {
                        Vec share = exponential(*(Vec *)(p + j) - shift);
                        *(Vec *)(p + j) = share;
                        *(Vec *)(dp + j) = share * (*(Vec *)(dp + j) - mean) * scale;
                    }
                }
                float *dq_at = dq + row * line + h * width;
                multiply(dp, stride, 1, k_columns, dq_at, line, rows, 0, k_columns.panels, width, visible, 1, 0);
                Packed d_block = pack_columns((Rows){d_at, line}, 0, rows, width, packed);
                Packed q_block = pack_columns((Rows){q_at, stride_q}, 0, rows, width, packed + edge * ROWS);
                for (Index j = 0; j < visible; j += ROWS) {
                    Index some = least(ROWS, visible - j);
                    multiply(p + j, 1, stride, d_block, dv + j * wide_line, wide_line, some, 0, d_block.panels, width, rows, 1, 1);
                    multiply(dp + j, 1, stride, q_block, dk + j * wide_line, wide_line, some, 0, q_block.panels, width, rows, 1, 1);
                }
            }
    }
}

/* total[row] += the lines of all entries that name it, in their order; sums over `split` of a line. */
void te_add_lines(const float *lines, const Index *rows, Index count, float *total, Index groups, Index split,
                  Index width, int threads)
{
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (Index g = 0; g < groups; g++)
        for (Index j = 0; j < count; j++)
            for (Index part = 0; part < split; part++) {
                const float *from = lines + ((j * groups + g) * split + part) * width;
                float *to = total + (rows[j] * groups + g) * width;
                for (Index e = 0; e < width; e += LANES) *(Vec *)(to + e) += *(Vec *)(from + e);
            }
}
