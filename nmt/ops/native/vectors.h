// Vectors of float32 as wide as the machine has them, and the few functions the kernels need.

#pragma once

#include <math.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

// The floats of a vector: as many as a register holds. Any other power of two from 4 on gives the
// same numbers by plain C, without the instructions below that are named after a processor.
#if !defined(LANES)
#if defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX2__)
#define LANES 8
#else
#define LANES 4
#endif
#endif
#if defined(__AVX512F__) && LANES == 16
#define WITH_AVX512
#elif defined(__AVX2__) && LANES == 8
#define WITH_AVX2
#elif defined(__ARM_NEON) && LANES == 4
#define WITH_NEON
#endif

// Loads and stores need no alignment beyond that of a float.
typedef float Vector __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t Ints __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

#define INLINE static inline __attribute__((always_inline))

INLINE size_t round_up(size_t count) { return (count + LANES - 1) / LANES * LANES; }
INLINE Vector load(const float *from) { return *(const Vector *)from; }
INLINE void store(float *to, Vector x) { *(Vector *)to = x; }
INLINE Vector all(float x) { return x - (Vector){0}; }
INLINE Vector choose(Ints where, Vector yes, Vector no) {
    return (Vector)((where & (Ints)yes) | (~where & (Ints)no));
}
// Whether a comparison holds in any lane.
INLINE int any(Ints where) {
#ifdef WITH_AVX512
    return _mm512_test_epi32_mask((__m512i)where, (__m512i)where) != 0;
#elif defined(WITH_AVX2)
    return !_mm256_testz_si256((__m256i)where, (__m256i)where);
#else
    int32_t found = 0;
    for (int lane = 0; lane < LANES; lane++) found |= where[lane];
    return found != 0;
#endif
}
// NaN in x is passed on: of two numbers that cannot be compared these take the second.
#ifdef WITH_AVX512
INLINE Vector at_least(Vector x, float least) {
    return (Vector)_mm512_max_ps((__m512)all(least), (__m512)x);
}
INLINE Vector at_most(Vector x, float most) {
    return (Vector)_mm512_min_ps((__m512)all(most), (__m512)x);
}
INLINE Vector root(Vector x) { return (Vector)_mm512_sqrt_ps((__m512)x); }
#elif defined(WITH_AVX2)
INLINE Vector at_least(Vector x, float least) {
    return (Vector)_mm256_max_ps((__m256)all(least), (__m256)x);
}
INLINE Vector at_most(Vector x, float most) {
    return (Vector)_mm256_min_ps((__m256)all(most), (__m256)x);
}
INLINE Vector root(Vector x) { return (Vector)_mm256_sqrt_ps((__m256)x); }
#else
INLINE Vector at_least(Vector x, float least) { return choose(x < least, all(least), x); }
INLINE Vector at_most(Vector x, float most) { return choose(x > most, all(most), x); }
INLINE Vector root(Vector x) {
#ifdef WITH_NEON
    return (Vector)vsqrtq_f32((float32x4_t)x);
#else
    for (int lane = 0; lane < LANES; lane++) x[lane] = sqrtf(x[lane]);
    return x;
#endif
}
#endif

INLINE Ints lane_numbers(void) {
    Ints numbers;
    for (int lane = 0; lane < LANES; lane++) numbers[lane] = lane;
    return numbers;
}

// Sums are by halves: always the same order, whatever the compiler.
INLINE Vector add_half(Vector x, const int half) {
    return x + __builtin_shuffle(x, (lane_numbers() + half) & (LANES - 1));
}
INLINE float sum(Vector x) {
#pragma GCC unroll 4
    for (int half = LANES / 2; half > 0; half /= 2) x = add_half(x, half);
    return x[0];
}
// The sums of LANES vectors, each as `sum` computes it; the vectors are overwritten.
INLINE Vector sums_of(Vector *x) {
#pragma GCC unroll 4
    for (int half = LANES / 2; half > 0; half /= 2) {
        // The halves of the first vector's parts side by side, then those of the second.
        const Ints low = lane_numbers() + (lane_numbers() & -half), high = low + half;
#pragma GCC unroll 8
        for (int pair = 0; pair < half; pair++) {
            const Vector a = x[2 * pair], b = x[2 * pair + 1];
            x[pair] = __builtin_shuffle(a, b, low) + __builtin_shuffle(a, b, high);
        }
    }
    return x[0];
}
INLINE float largest(Vector x) {
#pragma GCC unroll 4
    for (int half = LANES / 2; half > 0; half /= 2) {
        const Vector other = __builtin_shuffle(x, (lane_numbers() + half) & (LANES - 1));
        x = choose(x > other, x, other);
    }
    return x[0];
}

// The first `count` (at most LANES) numbers, and `rest` in the other lanes.
INLINE Vector load_part(const float *from, size_t count, float rest) {
    if (count >= LANES) return load(from);
    Vector x = all(rest);
    for (size_t lane = 0; lane < count; lane++) x[lane] = from[lane];
    return x;
}
INLINE void store_part(float *to, size_t count, Vector x) {
    if (count >= LANES) {
        store(to, x);
        return;
    }
    for (size_t lane = 0; lane < count; lane++) to[lane] = x[lane];
}

INLINE Vector to_floats(Ints x) { return __builtin_convertvector(x, Vector); }
INLINE Ints to_ints(Vector x) { return __builtin_convertvector(x, Ints); }

// To the nearest integer, halves to even, for |x| < 2^22.
INLINE Vector nearest(Vector x) {
    const float shift = 12582912.0f;  // 1.5 * 2^23: beyond it there are no fractions
    return (x + shift) - shift;
}

// e^x to about one unit in the last place: 2^n e^r, |r| <= log(2) / 2, a polynomial for e^r.
// Below -87.3 it is 0, from 88.73 on infinite; NaN stays NaN.
INLINE Vector exponential(Vector x) {
    x = at_most(x, 89.0f);
#ifdef WITH_AVX512
    Vector n = (Vector)_mm512_roundscale_ps((__m512)(x * 1.44269504f), _MM_FROUND_TO_NEAREST_INT);
#else
    Vector n = nearest(at_least(x, -88.0f) * 1.44269504f);
    n = choose(n == n, n, all(0.0f));
#endif
    Vector r = x - n * 0.693359375f;
    r = r - n * -2.12194440e-4f;
    Vector p = all(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
#ifdef WITH_AVX512
    // Not below -87.3, by a mask that holds for NaN.
    const __mmask16 some = _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(-87.3f), _CMP_NLT_UQ);
    return (Vector)_mm512_maskz_scalef_ps(some, (__m512)p, (__m512)n);
#else
    // In two factors, so that neither 2^-127 nor 2^128 is needed as one.
    Ints whole = to_ints(n), half = whole >> 1;
    Vector y = p * (Vector)((half + 127) << 23) * (Vector)((whole - half + 127) << 23);
    return choose(x < -87.3f, all(0.0f), y);
#endif
}

INLINE Vector gelu(Vector x) {
    for (int lane = 0; lane < LANES; lane++)
        x[lane] = 0.5f * x[lane] * (1.0f + erff(x[lane] * (float)M_SQRT1_2));
    return x;
}

// log2(1 + u) for u in [-1, 0], exact for the smallest of them; anything finite at -1.
INLINE Vector logarithm2_of_1_plus(Vector u) {
    // 1 + u = 2^n m with m in [sqrt(1/2), sqrt(2))
    Ints bits = (Ints)(1.0f + u);
    Ints n = (bits - 0x3f3504f3) >> 23;
    Vector m = (Vector)(bits - (n << 23));
    // log(m) = 2 atanh(s), s = (m - 1) / (m + 1), |s| < 0.172
    Vector s = choose(n == 0, u, m - 1.0f) / (m + 1.0f), square = s * s;
    Vector p = all(0.2222222222f * 1.44269504f);  // 2/9 of log2(e), and so on
    p = p * square + 0.2857142857f * 1.44269504f;
    p = p * square + 0.4f * 1.44269504f;
    p = p * square + 0.6666666667f * 1.44269504f;
    p = p * square + 2.0f * 1.44269504f;
    return to_floats(n) + p * s;
}

// log2 of x > 0 (normal numbers) to about 2e-7 relative to 1; used for powers.
INLINE Vector logarithm2(Vector x) {
    Ints bits = (Ints)x;
    Ints n = (bits - 0x3f3504f3) >> 23;
    Vector m = (Vector)(bits - (n << 23));
    Vector s = (m - 1.0f) / (m + 1.0f), square = s * s;
    Vector p = all(0.2857142857f * 1.44269504f);
    p = p * square + 0.4f * 1.44269504f;
    p = p * square + 0.6666666667f * 1.44269504f;
    p = p * square + 2.0f * 1.44269504f;
    return to_floats(n) + p * s;
}

// 2^x for x < 128, about 0 below -126; NaN stays NaN.
INLINE Vector power2(Vector x) {
    Vector n = nearest(at_least(x, -126.0f));
    Vector r = at_least(x, -127.0f) - n;
    Vector p = all(1.5403530e-4f);  // of 2^r, |r| <= 1/2
    p = p * r + 1.3333558e-3f;
    p = p * r + 9.6181291e-3f;
    p = p * r + 5.5504109e-2f;
    p = p * r + 2.4022651e-1f;
    p = p * r + 6.9314718e-1f;
    p = p * r + 1.0f;
    Ints whole = to_ints(choose(n == n, n, all(0.0f)));
    return choose(x < -126.0f, all(0.0f), p * (Vector)((whole + 127) << 23));
}
