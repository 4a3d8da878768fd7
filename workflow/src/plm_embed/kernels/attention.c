/* Attention within each of several packed sequences, for processors with AVX-512.

A vector holds one number of each of 16 queries, so that scores, softmax and mean values are sums of
whole vectors: neither the width of a head nor the number of keys has to fill one. Keys come in
blocks, whose scores stay in the first-level cache; each block rescales the sums of those before it
(online softmax: Milakov and Gimelshein 2018, arXiv:1805.02867). Blocks begin with the sequence, so
the bits of a sequence do not depend on its company.

Compiled for each width of a head, -DWIDTH=24, and for bfloat16 with -DHALF. A word is 32 bits: a
number of fp32, or two neighbors of bfloat16, whose products AVX512_BF16 adds up in fp32. */

#include <immintrin.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define QUERIES 32 /* at a time, in two vectors */
#define KEYS 12    /* whose scores are in registers at a time */
#define COLUMNS 8  /* of the values that are, likewise */
#define BLOCK 120  /* keys; a multiple of KEYS, and even */
#define PADDED ((WIDTH + COLUMNS - 1) / COLUMNS * COLUMNS)
#define LOG2_E 1.44269504088896341f

#ifdef HALF
typedef uint16_t number;
static inline float wide(number x) {
    const uint32_t bits = (uint32_t)x << 16;
    float same;
    memcpy(&same, &bits, 4);
    return same;
}
static inline number narrow(float x) { /* the nearest; the even one of two */
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
#else
typedef float number;
static inline float wide(number x) { return x; }
static inline number narrow(float x) { return x; }
#endif
enum { WORDS = WIDTH * sizeof(number) / 4, PER_WORD = 4 / sizeof(number) };
typedef __m512 vector;
#define INLINE static inline __attribute__((always_inline))

INLINE vector all(float x) { return _mm512_set1_ps(x); }

/* 2^x for x <= 0; 0 for minus infinity, whatever `part` is then. The polynomials have the least
relative error on [-1/2, 1/2]: 7.5e-8, and 7.5e-5 where bfloat16's 2e-3 follow. */
INLINE vector power_of_two(vector x) {
    vector whole = _mm512_roundscale_ps(x, 0), part = x - whole;
#ifdef HALF
    vector sum = all(5.517166853e-2f) * part + all(2.426111251e-1f);
    sum = (sum * part + all(6.932609677e-1f)) * part + all(9.999280572e-1f);
#else
    vector sum = all(1.327647245e-3f) * part + all(9.675540961e-3f);
    sum = (sum * part + all(5.550713092e-2f)) * part + all(2.402212024e-1f);
    sum = (sum * part + all(6.931469440e-1f)) * part + all(1.000000119f);
#endif
    return _mm512_scalef_ps(sum, whole);
}

/* sum + words x word, each number or pair of numbers of `words` with that of `word` */
INLINE vector add_product(vector sum, vector words, const uint32_t *word) {
#ifdef HALF
    return _mm512_dpbf16_ps(sum, (__m512bh)words, (__m512bh)_mm512_set1_epi32(*word));
#else
    float x;
    memcpy(&x, word, 4);
    return sum + words * all(x);
#endif
}

/* Scores (count, 32) of the queries (WORDS, 32) with some keys (count, WORDS); `most` becomes the
largest. With biases they are scaled first; those of the next key lie one number before. */
INLINE void score(int count, const uint32_t *keys, const vector *queries, float scale,
                  const float *biases, vector *scores, vector *most) {
    vector sums[KEYS][2];
    for (int key = 0; key < count; key++) sums[key][0] = sums[key][1] = all(0);
    for (int word = 0; word < WORDS; word++)
        for (int key = 0; key < count; key++)
            for (int side = 0; side < 2; side++)
                sums[key][side] = add_product(sums[key][side], queries[2 * word + side],
                                              keys + key * WORDS + word);
    for (int key = 0; key < count; key++)
        for (int side = 0; side < 2; side++) {
            vector sum = sums[key][side];
            if (biases) sum = sum * all(scale) + _mm512_loadu_ps(biases - key + 16 * side);
            /* its second argument when one is not a number, which thus is not lost */
            most[side] = _mm512_max_ps(most[side], sum);
            scores[2 * key + side] = sum;
        }
}

/* The sums (COLUMNS, 32) of some columns of the values, rows of PADDED words, become `factor` times
as large and get `count` more rows by the weights (count, 32). */
INLINE void mix(int count, const vector *weights, const uint32_t *values, const vector *factor,
                vector *mixed) {
    vector sums[COLUMNS][2];
    for (int column = 0; column < COLUMNS; column++) sums[column][0] = sums[column][1] = all(0);
    for (int row = 0; row < count; row++)
        for (int column = 0; column < COLUMNS; column++)
            for (int side = 0; side < 2; side++)
                sums[column][side] = add_product(sums[column][side], weights[2 * row + side],
                                                 values + (size_t)row * PADDED + column);
    for (int column = 0; column < COLUMNS; column++)
        for (int side = 0; side < 2; side++)
            mixed[2 * column + side] = mixed[2 * column + side] * factor[side] + sums[column][side];
}

/* Scores (count, 32) become weights, 2^((score - most) x scale), in bfloat16 those of two keys in
each word; `totals` become their sums. Returns their rows. */
INLINE int weigh(int count, vector *scores, vector scale, const vector *most, vector *totals) {
#ifdef HALF
    const __m512i pairs = _mm512_set_epi16(
        31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8,
        23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    if (count % 2) scores[2 * count] = scores[2 * count + 1] = all(-__builtin_inff());
#endif
    totals[0] = totals[1] = all(0);
    for (int key = 0; key < count; key += PER_WORD)
        for (int side = 0; side < 2; side++) {
            vector weights = power_of_two((scores[2 * key + side] - most[side]) * scale);
            totals[side] += weights;
#ifdef HALF
            vector next = power_of_two((scores[2 * key + 2 + side] - most[side]) * scale);
            totals[side] += next;
            __m512i both = (__m512i)_mm512_cvtne2ps_pbh(next, weights);
            scores[key + side] = (vector)_mm512_permutexvar_epi16(pairs, both);
#else
            scores[2 * key + side] = weights;
#endif
        }
    return (count + PER_WORD - 1) / PER_WORD;
}

/* A query or key; its halves turned against each other by the angles of its position, if any. */
INLINE void rotate(const number *from, const float *cosines, const float *sines, number *to) {
    if (!cosines) {
        memcpy(to, from, WIDTH * sizeof(number));
        return;
    }
    for (int i = 0; i < WIDTH / 2; i++) {
        const float left = wide(from[i]), right = wide(from[i + WIDTH / 2]);
        to[i] = narrow(left * cosines[i] - right * sines[i]);
        to[i + WIDTH / 2] = narrow(right * cosines[i] + left * sines[i]);
    }
}

/* The values (length, WIDTH) of a head as rows of PADDED words, in bfloat16 two keys in each. */
static void gather_values(const number *from, size_t step, int length, uint32_t *values) {
    memset(values, 0, (size_t)(length + 1) / PER_WORD * PADDED * 4);
    for (int key = 0; key < length; key++)
        for (int column = 0; column < WIDTH; column++)
            ((number *)(values + (size_t)(key / PER_WORD) * PADDED + column))[key % PER_WORD] =
                from[key * step + column];
}

/* One head of one sequence. `query`, and keys and values behind it: rows `step` numbers apart, a
third of that in `out`. cosines, sines (length, WIDTH / 2), or NULL. biases: that of distance 0, and
those around it, or NULL. */
static void attend_head(const number *query, size_t step, int length, float scale,
                        const float *cosines, const float *sines, const float *biases,
                        uint32_t *keys, uint32_t *values, number *out) {
    vector queries[2 * WORDS], scores[2 * BLOCK], mixed[2 * PADDED];
    const number *key = query + step / 3, *value = key + step / 3;
#define AT(row, angles) angles ? angles + (size_t)(row) * (WIDTH / 2) : NULL
    for (int row = 0; row < length; row++)
        rotate(key + row * step, AT(row, cosines), AT(row, sines), (number *)(keys + row * WORDS));
    gather_values(value, step, length, values);
    const vector later = all(biases ? LOG2_E : scale * LOG2_E);
    for (int first = 0; first < length; first += QUERIES) {
        const int asked = length - first < QUERIES ? length - first : QUERIES;
        for (int row = 0; row < QUERIES; row++) {
            const int from = first + (row < asked ? row : 0);
            uint32_t words[WORDS];
            rotate(query + from * step, AT(from, cosines), AT(from, sines), (number *)words);
            for (int word = 0; word < WORDS; word++)
                ((uint32_t *)queries)[word * QUERIES + row] = words[word];
        }
        const vector lowest = all(-__builtin_inff());
        vector highest[2] = {lowest, lowest}, totals[2] = {all(0), all(0)};
        memset(mixed, 0, sizeof mixed);
        for (int start = 0; start < length; start += BLOCK) {
            const int count = length - start < BLOCK ? length - start : BLOCK;
            const float *shifted = biases ? biases + first - start : NULL;
            const vector before[2] = {highest[0], highest[1]};
            int at = 0;
#define SCORE(some) \
    for (; at + some <= count; at += some) \
        score(some, keys + (size_t)(start + at) * WORDS, queries, scale, \
              shifted ? shifted - at : NULL, scores + 2 * at, highest)
            SCORE(KEYS);
            SCORE(3);
            SCORE(1);
            /* sums of sums: their rounding errors grow less than those of one long sum */
            vector more[2], factor[2] = {all(0), all(0)};
            const int rows = weigh(count, scores, later, highest, more);
            for (int side = 0; side < 2; side++) {
                if (start) factor[side] = power_of_two((before[side] - highest[side]) * later);
                totals[side] = totals[side] * factor[side] + more[side];
            }
            for (int column = 0; column < PADDED; column += COLUMNS)
                mix(rows, scores, values + (size_t)(start / PER_WORD) * PADDED + column, factor,
                    mixed + 2 * column);
        }
        for (int side = 0; side < 2; side++)
            for (int column = 0; column < WIDTH; column++) mixed[2 * column + side] /= totals[side];
        for (int row = 0; row < asked; row++)
            for (int column = 0; column < WIDTH; column++)
                out[(first + row) * (step / 3) + column] =
                    narrow(((float *)mixed)[column * QUERIES + row]);
    }
}

/* qkv (T, 3, heads, WIDTH) -> out (T, heads, WIDTH): every `turns`-th head of the sequences of
`lengths`, from number `turn` on. cosines, sines (T, WIDTH / 2): of the angles by which queries and
keys are rotated, or NULL. biases (heads, 2 middle + 1): by the distance of key and query, or NULL.
Returns 1 when memory lacks. */
int attend(const number *qkv, number *out, const int32_t *lengths, int sequences, int heads,
           float scale, const float *cosines, const float *sines, const float *biases, int middle,
           int turn, int turns) {
    int longest = 0, at = 0;
    for (int i = 0; i < sequences; i++) longest = lengths[i] > longest ? lengths[i] : longest;
    /* room for the queries behind the last one, and for whole lines of the cache */
    const size_t rows = (longest + 127) / 64 * 64, step = (size_t)3 * heads * WIDTH;
    uint32_t *keys = aligned_alloc(64, rows * 4 * (2 * PADDED + 2));
    if (!keys) return 1;
    uint32_t *values = keys + rows * PADDED;
    float *reversed = (float *)(values + rows * PADDED);
    for (int i = 0; i < sequences; i++) {
        const int length = lengths[i];
        for (int head = 0; head < heads; head++) {
            if (at++ % turns != turn) continue;
            const float *of_head =
                biases ? biases + (size_t)head * (2 * middle + 1) + middle : NULL;
            /* backwards, as the queries of a vector follow each other */
            for (int far = 1 - length; biases && far < length; far++)
                reversed[length - 1 - far] = of_head[far];
            attend_head(qkv + head * WIDTH, step, length, scale, cosines, sines,
                        biases ? reversed + length - 1 : NULL, keys, values, out + head * WIDTH);
        }
        if (cosines) cosines += length * (WIDTH / 2), sines += length * (WIDTH / 2);
        qkv += length * step;
        out += length * (step / 3);
    }
    free(keys);
    return 0;
}
