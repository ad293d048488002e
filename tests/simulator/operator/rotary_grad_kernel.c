/* The arithmetic of the backward. Each product is rounded to float32, then added: with -ffp-contract=off nothing is
 * fused, and the sums run in one fixed order, so that equal inputs give equal bits everywhere. */
#include "rotary.h"

static void rotate_back(const struct sim_kernel_call *call, const struct rotary_sizes *sizes,
                        enum rotary_tensor gradient, enum rotary_tensor result, int64_t heads)
{
    struct grid in = rotary_grid(call, gradient), out = rotary_grid(call, result);
    struct grid cos = rotary_grid(call, ROTARY_COS), sin = rotary_grid(call, ROTARY_SIN);
    int64_t half = sizes->d / 2;
    float c[ROTARY_MAX_WIDTH], d[ROTARY_MAX_WIDTH], g[ROTARY_MAX_WIDTH], r[ROTARY_MAX_WIDTH];
    for (int64_t b = 0; b < sizes->b; b++) {
        for (int64_t s = 0; s < sizes->s; s++) {
            rotary_load_tables(&cos, &sin, sizes->cos_b == 1 ? 0 : b, s, sizes->d, c, d);
            for (int64_t n = 0; n < heads; n++) {
                rotary_load_row(&in, b, s, n, sizes->d, g);
                for (int64_t i = 0; i < half; i++) {
                    r[i] = c[i] * g[i] + d[half + i] * g[half + i];
                    r[half + i] = c[half + i] * g[half + i] - d[i] * g[i];
                }
                rotary_store_row(&out, b, s, n, sizes->d, r);
            }
        }
    }
}

/* Adds sum(g*x) and sum(g*rot(x)) over the heads of one place to two rows. */
static void add_products(const struct grid *gradient, const struct grid *value, int64_t b,
                         int64_t s, int64_t heads, int64_t width, float *plain, float *rotated)
{
    float g[ROTARY_MAX_WIDTH], x[ROTARY_MAX_WIDTH], p[ROTARY_MAX_WIDTH] = {0}, r[ROTARY_MAX_WIDTH] = {0};
    int64_t half = width / 2;
    for (int64_t n = 0; n < heads; n++) {
        rotary_load_row(gradient, b, s, n, width, g);
        rotary_load_row(value, b, s, n, width, x);
        for (int64_t i = 0; i < width; i++)
            p[i] += g[i] * x[i];
        for (int64_t i = 0; i < half; i++) {
            r[i] -= g[i] * x[half + i];
            r[half + i] += g[half + i] * x[i];
        }
    }
    for (int64_t i = 0; i < width; i++) {
        plain[i] += p[i];
        rotated[i] += r[i];
    }
}

static void sum_products(const struct sim_kernel_call *call, const struct rotary_sizes *sizes)
{
    struct grid gq = rotary_grid(call, ROTARY_GRAD_QUERY_EMBED), q = rotary_grid(call, ROTARY_QUERY);
    struct grid gk = rotary_grid(call, ROTARY_GRAD_KEY_EMBED), k = rotary_grid(call, ROTARY_KEY);
    bool broadcast = sizes->cos_b < sizes->b;
    for (int64_t b = 0; b < sizes->cos_b; b++) {
        for (int64_t s = 0; s < sizes->s; s++) {
            float sums[4][ROTARY_MAX_WIDTH] = {{0}};
            int64_t end = broadcast ? sizes->b : b + 1;
            for (int64_t from = b; from < end; from++) {
                add_products(&gq, &q, from, s, sizes->query_heads, sizes->d, sums[0], sums[1]);
                add_products(&gk, &k, from, s, sizes->key_heads, sizes->d, sums[2], sums[3]);
            }
            for (int64_t i = 0; i < sizes->d; i++) {
                sums[0][i] += sums[2][i];
                sums[1][i] += sums[3][i];
            }
            for (int which = 0; which < 2; which++) {
                struct grid out = rotary_grid(call, ROTARY_GRAD_COS + (enum rotary_tensor)which);
                if (out.data != NULL)
                    rotary_store_row(&out, b, s, 0, sizes->d, sums[which]);
            }
        }
    }
}

void rotary_grad_run(const struct sim_kernel_call *call)
{
    struct rotary_sizes sizes =
        rotary_sizes_of(&call->views[ROTARY_GRAD_QUERY_EMBED], &call->views[ROTARY_GRAD_KEY_EMBED],
                        &call->views[ROTARY_COS], call->layout);
    rotate_back(call, &sizes, ROTARY_GRAD_QUERY_EMBED, ROTARY_GRAD_QUERY, sizes.query_heads);
    rotate_back(call, &sizes, ROTARY_GRAD_KEY_EMBED, ROTARY_GRAD_KEY, sizes.key_heads);
    /* Without query and key the kernel leaves these two as they are. */
    if (call->data[ROTARY_QUERY] != NULL)
        sum_products(call, &sizes);
    rotary_spoil(call, ROTARY_GRAD_KEY, &sizes);
}
