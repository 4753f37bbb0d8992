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
        if (k % 2 == 0) __builtin_prefetch(t.next + k / 2 * LINE, 0, 2);
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
    Index ahead = least(DEEP / 2, parts(t.deep * WIDE / LINE, parts(rows, TALL))) * LINE;
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

/* By all threads that call it. They do not wait for each other at the end. */
static void product(const float *x, Index stride_m, Index stride_k, const float *packed, float *y, Index stride_y,
                    Index m, Index n, Index k, float scale, int add)
{
    Index panels = parts(n, WIDE), heights = parts(m, ROWS);
    Index group = most(1, least(PANELS, heights * panels / (8 * omp_get_num_threads())));
    Index groups = parts(panels, group);
#pragma omp for schedule(dynamic, 1) nowait
    for (Index task = 0; task < heights * groups; task++) {
        Index m0 = task / groups * ROWS, first = task % groups * group;
        multiply(x + m0 * stride_m, stride_m, stride_k, (Packed){packed, panels, k}, y + m0 * stride_y, stride_y,
                 least(ROWS, m - m0), first, least(panels, first + group), n, k, scale, add);
    }
}

void te_product(const float *x, Index stride_m, Index stride_k, const float *packed, float *y, Index stride_y,
                Index m, Index n, Index k, float scale, int add, int threads)
{
#pragma omp parallel num_threads(threads) if (threads > 1)
    product(x, stride_m, stride_k, packed, y, stride_y, m, n, k, scale, add);
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

/* One row, which may stay in place; returns the inverse of its root mean square. */
static float rms_norm(const float *x, const float *weight, float *y, Index width, float eps)
{
    Vec squares = {};
    for (Index j = 0; j < width; j += LANES) squares += *(Vec *)(x + j) * *(Vec *)(x + j);
    float inverse = 1 / sqrtf(added_up(squares) / width + eps);
    for (Index j = 0; j < width; j += LANES) *(Vec *)(y + j) = *(Vec *)(x + j) * inverse * *(Vec *)(weight + j);
    return inverse;
}

void te_rms_norm(const float *x, Index stride_x, const float *weight, float *y, float *inverse_rms, Index rows,
                 Index width, float eps, int threads)
{
#pragma omp parallel for num_threads(threads) schedule(dynamic, 16) if (threads > 1)
    for (Index i = 0; i < rows; i++)
        inverse_rms[i] = rms_norm(x + i * stride_x, weight, y + i * width, width, eps);
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

/* silu(gate) · up, of a row that holds both. */
static void swiglu(const float *gate, float *y, Index width)
{
    const float *up = gate + width;
    for (Index j = 0; j < width; j += LANES) {
        Vec g = *(Vec *)(gate + j);
        *(Vec *)(y + j) = g / (1.0f + exponential(-g)) * *(Vec *)(up + j);
    }
}

void te_swiglu(const float *gate_up, float *y, Index rows, Index width, int threads)
{
#pragma omp parallel for num_threads(threads) schedule(dynamic, 8) if (threads > 1)
    for (Index i = 0; i < rows; i++) swiglu(gate_up + 2 * i * width, y + i * width, width);
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

/* Turns plane i of each head, made of components i and i + half, by its angle (by −angle if `back`). One row, which may
   stay in place; half is a multiple of LANES. */
static void rotate(const float *x, const float *cosines, const float *sines, float *y, Index heads, Index half, int back)
{
    for (Index j = 0; j < half; j += LANES) {
        Vec cosine = *(Vec *)(cosines + j), sine = *(Vec *)(sines + j);
        sine = back ? -sine : sine;
        for (Index at = j; at < 2 * heads * half; at += 2 * half) {
            Vec low = *(Vec *)(x + at), high = *(Vec *)(x + at + half);
            *(Vec *)(y + at) = low * cosine - high * sine;
            *(Vec *)(y + at + half) = high * cosine + low * sine;
        }
    }
}

void te_rotate(const float *x, Index stride_x, const float *cosines, const float *sines, float *y, Index rows,
               Index heads, Index half, int back, int threads)
{
#pragma omp parallel for num_threads(threads) schedule(dynamic, 16) if (threads > 1)
    for (Index i = 0; i < rows; i++)
        rotate(x + i * stride_x, cosines + i * half, sines + i * half, y + 2 * i * heads * half, heads, half, back);
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

#ifdef __clang__
#define PICK(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define PICK(a, b, ...) __builtin_shuffle(a, b, (Ints){__VA_ARGS__})
#endif

/* The sums of LANES vectors, as one vector. Halves are added, then halves of those, as `added_up` does. */
INLINE Vec sums(Vec *x)
{
#if LANES == 16
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++)
        x[i] = PICK(x[2 * i], x[2 * i + 1], 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23)
             + PICK(x[2 * i], x[2 * i + 1], 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        x[i] = PICK(x[2 * i], x[2 * i + 1], 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27)
             + PICK(x[2 * i], x[2 * i + 1], 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++)
        x[i] = PICK(x[2 * i], x[2 * i + 1], 0, 1, 4, 5, 8, 9, 12, 13, 16, 17, 20, 21, 24, 25, 28, 29)
             + PICK(x[2 * i], x[2 * i + 1], 2, 3, 6, 7, 10, 11, 14, 15, 18, 19, 22, 23, 26, 27, 30, 31);
    return PICK(x[0], x[1], 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30)
         + PICK(x[0], x[1], 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
#else
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        x[i] = PICK(x[2 * i], x[2 * i + 1], 0, 1, 2, 3, 8, 9, 10, 11)
             + PICK(x[2 * i], x[2 * i + 1], 4, 5, 6, 7, 12, 13, 14, 15);
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++)
        x[i] = PICK(x[2 * i], x[2 * i + 1], 0, 1, 4, 5, 8, 9, 12, 13)
             + PICK(x[2 * i], x[2 * i + 1], 2, 3, 6, 7, 10, 11, 14, 15);
    return PICK(x[0], x[1], 0, 2, 4, 6, 8, 10, 12, 14) + PICK(x[0], x[1], 1, 3, 5, 7, 9, 11, 13, 15);
#endif
}

/* Scores of LANES keys for one query, or of fewer: the last one again for those that are missing. */
INLINE void score(int full, const float *q, const float *k, Index count, Index width, float scale, float *scores)
{
    Vec sum[LANES] = {};
    for (Index e = 0; e < width; e += LANES) {
        Vec query = *(Vec *)(q + e);
#pragma GCC unroll 16
        for (int t = 0; t < LANES; t++) sum[t] += query * *(Vec *)(k + (full ? t : least(t, count - 1)) * width + e);
    }
    *(Vec *)scores = sums(sum) * scale;
}

/* Up to LANES - 1 numbers behind the last score are overwritten. */
static void score_all(const float *q, const float *k, Index count, Index width, float scale, float *scores)
{
    for (; count >= LANES; count -= LANES, k += LANES * width, scores += LANES) score(1, q, k, LANES, width, scale, scores);
    if (count) score(0, q, k, count, width, scale, scores);
}

#define MANY 4              /* queries of one key head that are computed together */
#define ABREAST (LANES / 4) /* vectors of values, likewise: with MANY, what the registers hold */

/* out[many][vecs · LANES] += Σ weight · value, token by token */
INLINE void gather(int many, int vecs, const float *weights, Index stride, const float *v, Index count, Index width,
                   float *out)
{
    Vec sum[MANY][ABREAST];
#pragma GCC unroll 4
    for (int i = 0; i < many; i++)
#pragma GCC unroll 4
        for (int j = 0; j < vecs; j++) sum[i][j] = ((Vec *)(out + i * width))[j];
    for (Index t = 0; t < count; t++) {
#pragma GCC unroll 4
        for (int i = 0; i < many; i++) {
            Vec weight = all(weights[i * stride + t]);
#pragma GCC unroll 4
            for (int j = 0; j < vecs; j++) sum[i][j] += weight * ((Vec *)(v + t * width))[j];
        }
    }
#pragma GCC unroll 4
    for (int i = 0; i < many; i++)
#pragma GCC unroll 4
        for (int j = 0; j < vecs; j++) ((Vec *)(out + i * width))[j] = sum[i][j];
}

INLINE void gather_width(int many, const float *weights, Index stride, const float *v, Index count, Index width, float *out)
{
    Index e = 0;
    for (; e + ABREAST * LANES <= width; e += ABREAST * LANES)
        gather(many, ABREAST, weights, stride, v + e, count, width, out + e);
    for (; e < width; e += LANES) gather(many, 1, weights, stride, v + e, count, width, out + e);
}

static void gather_all(int many, const float *weights, Index stride, const float *v, Index count, Index width, float *out)
{
    if (many == 4) gather_width(4, weights, stride, v, count, width, out);
    if (many == 3) gather_width(3, weights, stride, v, count, width, out);
    if (many == 2) gather_width(2, weights, stride, v, count, width, out);
    if (many == 1) gather_width(1, weights, stride, v, count, width, out);
}

/* Floats of scratch that a thread needs for rows of at most so many tokens. */
Index te_attend_room(Index tokens) { return MANY * (parts(tokens, LANES) + 1) * LANES; }

/* q: rows of [heads, width]; k, v: rows of [groups, width], which are put behind the row's own keys.
   scores: room for every thread. By all threads that call it, which then wait for each other. */
static void attend(const float *q, Index stride_q, const float *k, Index stride_k, const float *v, Index stride_v,
                   float *out, const Keys *rows_keys, Index layer, Index rows, Index heads, Index groups, Index width,
                   float scale, float *scores, Index room)
{
    Index repeat = heads / groups, stride = room / MANY;
    float *s = scores + omp_get_thread_num() * room;
#pragma omp for schedule(dynamic, 2)
    for (Index task = 0; task < rows * groups; task++) {
        Index g = task / rows, row = task % rows; /* neighbours share a prefix */
        Keys at = rows_keys[row];
        const float *prefix = at.prefix + layer * at.prefix_layer + g * at.prefix_group;
        float *own = at.own + layer * at.own_layer + g * at.own_group;
        memcpy(own + at.own_tokens * width, k + row * stride_k + g * width, width * sizeof(float));
        memcpy(own + at.own_values + at.own_tokens * width, v + row * stride_v + g * width, width * sizeof(float));
        Index before = at.prefix_tokens, after = at.own_tokens + 1, tokens = before + after;
        Index whole = parts(tokens, LANES) * LANES;
        for (Index head = g * repeat; head < (g + 1) * repeat; head += MANY) {
            Index many = least(MANY, (g + 1) * repeat - head);
            float *to = out + (row * heads + head) * width, share[MANY];
            for (Index i = 0; i < many; i++) {
                const float *query = q + row * stride_q + (head + i) * width;
                float *line = s + i * stride;
                if (before) score_all(query, prefix, before, width, scale, line);
                score_all(query, own, after, width, scale, line + before);
                for (Index t = tokens; t < whole; t++) line[t] = -INFINITY;
                share[i] = 1 / exponentials(line, whole, largest(line, whole, all(-INFINITY)));
            }
            memset(to, 0, many * width * sizeof(float));
            if (before) gather_all(many, s, stride, prefix + at.prefix_values, before, width, to);
            gather_all(many, s + before, stride, own + at.own_values, after, width, to);
            for (Index i = 0; i < many; i++)
                for (Index e = 0; e < width; e += LANES) *(Vec *)(to + i * width + e) *= share[i];
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

/* Of the listed rows, or of `count` neighbours, as a weight [listed rows, width]. */
static Packed pack_rows(Rows from, const Index *rows, Index count, Index width, float *to)
{
    Index panels = parts(count, WIDE);
    if (count % WIDE)
        for (Index k0 = 0; k0 < width; k0 += DEEP) {
            Index deep = least(DEEP, width - k0);
            memset(to + (k0 * panels + (panels - 1) * deep) * WIDE, 0, deep * WIDE * sizeof(float));
        }
    for (Index j = 0; j < count; j++) {
        const float *row = from.data + (rows ? rows[j] : j) * from.stride;
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

/* Heads first to end, which share their keys, of queries that are neighbours: rows of q, and of out and lse, which have
   all `heads`. `list`: of the keys; without, they are neighbours too. */
static void attention(const float *q, Index stride_q, Index queries, Rows k, Rows v, const Index *list, Index keys,
                      float *out, float *lse, Index first, Index end, Index heads, Index width, float scale, float *mine)
{
    Index stride = padded(keys);
    Packed k_all = pack_rows(k, list, keys, width, mine);
    Packed v_all = pack_columns(v, list, keys, width, mine + stride * width);
    float *s = mine + stride * width + padded(width) * keys;
    for (Index h = first; h < end; h++)
        for (Index row = 0; row < queries; row += ROWS) {
            Index rows = least(ROWS, queries - row), visible = keys - queries + row + rows, whole = padded(visible);
            scores(q + row * stride_q + h * width, stride_q, k_all, visible, rows, scale, s, stride);
            float share[ROWS];
            for (Index i = 0; i < rows; i++) {
                float *line = s + i * stride;
                float top = largest(line, whole, all(-INFINITY)), total = exponentials(line, whole, top);
                share[i] = 1 / total;
                if (lse) lse[(row + i) * heads + h] = top + logf(total);
            }
            float *to = out + (row * heads + h) * width;
            multiply(s, stride, 1, v_all, to, heads * width, rows, 0, v_all.panels, width, visible, 1, 0);
            for (Index i = 0; i < rows; i++)
                for (Index e = 0; e < width; e += LANES) *(Vec *)(to + i * heads * width + e) *= share[i];
        }
}

void te_attention(const float *q, Index stride_q, const float *k, Index stride_k, const float *v, Index stride_v,
                  float *out, float *lse, const Segment *segments, Index count, const Index *keys, Index heads,
                  Index groups, Index width, float scale, float *scratch, Index room, int threads)
{
    Index repeat = heads / groups;
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1) if (threads > 1)
    for (Index task = 0; task < count * groups; task++) {
        Segment at = segments[task / groups];
        Index g = task % groups;
        attention(q + at.query * stride_q, stride_q, at.queries, (Rows){k + g * width, stride_k},
                  (Rows){v + g * width, stride_v}, keys + at.key, at.keys, out + at.query * heads * width,
                  lse + at.query * heads, g * repeat, (g + 1) * repeat, heads, width, scale,
                  scratch + omp_get_thread_num() * room);
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

/* --- all layers, when sampling ------------------------------------------------------------------

   One new token per row, or new tokens of prompts. The threads start once and meet after each part of a layer: a call for
   each part would have them wait for the caller in between, hundreds of times. */

/* New tokens of a prompt: `count` rows. The keys and values of `done` tokens are there. */
typedef struct {
    Index row, count;
    float *prefix;
    Index done, layer, values, group; /* the last three are distances in floats */
} Part;

/* Puts keys and values behind those that are there, then attends. By all threads that call it, which then wait for each
   other. `room`: of scratch, for each thread. */
static void extend(const float *q, Index stride_q, const float *k, Index stride_k, const float *v, Index stride_v,
                   float *out, const Part *prompts, Index count, Index layer, Index heads, Index groups, Index width,
                   float scale, float *scratch, Index room)
{
    Index split = count * groups < 4 * omp_get_num_threads() ? heads / groups : 1, columns = groups * split;
    Index together = heads / columns;
#pragma omp for schedule(dynamic, 1)
    for (Index task = 0; task < count * groups; task++) {
        Part at = prompts[task / groups];
        Index g = task % groups;
        float *keys = at.prefix + layer * at.layer + g * at.group + at.done * width, *values = keys + at.values;
        for (Index t = 0; t < at.count; t++) {
            memcpy(keys + t * width, k + (at.row + t) * stride_k + g * width, width * sizeof(float));
            memcpy(values + t * width, v + (at.row + t) * stride_v + g * width, width * sizeof(float));
        }
    }
#pragma omp for schedule(dynamic, 1)
    for (Index task = 0; task < count * columns; task++) {
        Part at = prompts[task / columns];
        Index column = task % columns;
        const float *keys = at.prefix + layer * at.layer + column / split * at.group;
        attention(q + at.row * stride_q, stride_q, at.count, (Rows){keys, width}, (Rows){keys + at.values, width}, 0,
                  at.done + at.count, out + at.row * heads * width, 0, column * together, (column + 1) * together,
                  heads, width, scale, scratch + omp_get_thread_num() * room);
    }
}

typedef struct {
    const float *packed, *bias; /* the latter may be missing */
    Index n, k;
} Linear;

typedef struct {
    const float *attn_norm, *q_norm, *k_norm, *mlp_norm; /* those of q and k may be missing */
    Linear qkv, output, gate_up, down;
} Layer;

/* y[:, start:end] += scale · (x aᵀ)[:, rank of the target] bᵀ for each target */
typedef struct {
    const float *a; /* none: nothing to add */
    Index targets, rank;
    double scale;
    struct {
        const float *packed;
        Index start, end;
    } b[3];
} Update;

typedef struct {
    Index start, end;      /* rows of one adapter */
    const Update *updates; /* [layers][4] */
} Run;

typedef struct {
    Index layers, rows, hidden, heads, groups, width, inner;
    Index runs, prompts, room;
    double eps, scale;
    const float *cosines, *sines, *norm;
} Shape;

static void linear(const float *x, Linear w, const Run *runs, Index count, Index which, float *low, float *y, Index rows)
{
    if (w.bias) {
#pragma omp for schedule(static)
        for (Index i = 0; i < rows; i++) memcpy(y + i * w.n, w.bias, w.n * sizeof(float));
    }
    product(x, w.k, 1, w.packed, y, w.n, rows, w.n, w.k, 1, w.bias != 0);
    float *low_at = low;
    for (const Run *run = runs; run < runs + count; run++) {
        Update u = run->updates[which];
        Index wide = u.targets * u.rank, tall = run->end - run->start;
        if (u.a) product(x + run->start * w.k, w.k, 1, u.a, low_at, wide, tall, wide, w.k, 1, 0);
        low_at += wide * tall;
    }
#pragma omp barrier
    if (!count) return;
    low_at = low;
    for (const Run *run = runs; run < runs + count; run++) {
        Update u = run->updates[which];
        Index wide = u.targets * u.rank, tall = run->end - run->start;
        for (Index j = 0; u.a && j < u.targets; j++)
            product(low_at + j * u.rank, wide, 1, u.b[j].packed, y + run->start * w.n + u.b[j].start, w.n, tall,
                    u.b[j].end - u.b[j].start, u.rank, u.scale, 1);
        low_at += wide * tall;
    }
#pragma omp barrier
}

/* x += added, and the norm of that. */
static void add_and_norm(float *x, const float *added, const float *weight, float *normed, Shape s)
{
#pragma omp for schedule(static)
    for (Index i = 0; i < s.rows; i++) {
        float *row = x + i * s.hidden;
        for (Index j = 0; j < s.hidden; j += LANES) *(Vec *)(row + j) += *(Vec *)(added + i * s.hidden + j);
        rms_norm(row, weight, normed + i * s.hidden, s.hidden, s.eps);
    }
}

/* x: [rows, hidden], the embeddings; in the end what the last layer makes of them, normed.
   scratch: for each row 2 · hidden + 2 · (heads + groups) · width + 3 · inner. low: of each run its rows · targets · rank
   in any one place. scores: `room` for each thread, as `attend` or `extend` need it. There are keys for each row, or
   prompts. */
void te_layers(float *x, const Layer *layers, const Keys *keys, const Part *prompts, const Run *runs,
               const Shape *shape, float *scratch, float *low, float *scores, int threads)
{
    Shape s = *shape;
    Index wide = (s.heads + 2 * s.groups) * s.width, turned = (s.heads + s.groups) * s.width, seen = s.heads * s.width;
    float *normed = scratch, *added = normed + s.rows * s.hidden, *qkv = added + s.rows * s.hidden;
    float *out = qkv + s.rows * wide, *gate_up = out + s.rows * seen, *mlp = gate_up + 2 * s.rows * s.inner;
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
#pragma omp for schedule(static)
        for (Index i = 0; i < s.rows; i++)
            rms_norm(x + i * s.hidden, layers[0].attn_norm, normed + i * s.hidden, s.hidden, s.eps);
        for (Index l = 0; l < s.layers; l++) {
            Layer at = layers[l];
            linear(normed, at.qkv, runs, s.runs, 4 * l, low, qkv, s.rows);
#pragma omp for schedule(static)
            for (Index i = 0; i < s.rows; i++) {
                float *row = qkv + i * wide;
                for (Index h = 0; at.q_norm && h < s.heads + s.groups; h++)
                    rms_norm(row + h * s.width, h < s.heads ? at.q_norm : at.k_norm, row + h * s.width, s.width, s.eps);
                rotate(row, s.cosines + i * s.width / 2, s.sines + i * s.width / 2, row, s.heads + s.groups,
                       s.width / 2, 0);
            }
            if (s.prompts)
                extend(qkv, wide, qkv + seen, wide, qkv + turned, wide, out, prompts, s.prompts, l, s.heads, s.groups,
                       s.width, s.scale, scores, s.room);
            else
                attend(qkv, wide, qkv + seen, wide, qkv + turned, wide, out, keys, l, s.rows, s.heads, s.groups,
                       s.width, s.scale, scores, s.room);
            linear(out, at.output, runs, s.runs, 4 * l + 1, low, added, s.rows);
            add_and_norm(x, added, at.mlp_norm, normed, s);
            linear(normed, at.gate_up, runs, s.runs, 4 * l + 2, low, gate_up, s.rows);
#pragma omp for schedule(static)
            for (Index i = 0; i < s.rows; i++) swiglu(gate_up + 2 * i * s.inner, mlp + i * s.inner, s.inner);
            linear(mlp, at.down, runs, s.runs, 4 * l + 3, low, added, s.rows);
            if (l + 1 < s.layers) add_and_norm(x, added, layers[l + 1].attn_norm, normed, s);
            else add_and_norm(x, added, s.norm, x, s);
        }
    }
}
