/* The arithmetic. Each product is rounded to float32, then added: with -ffp-contract=off nothing is
 * fused, and the sums run in one fixed order, so that equal inputs give equal bits everywhere.
 *
 * OPFERRY_KERNEL_... make wrong kernels of it, for the packages that are to be found out. */
#include "rotary.h"

#include <math.h>
#include <string.h>

#define MAX_WIDTH 1024

/* One tensor with the axes B, S, N, D; strides in elements. */
struct grid {
    unsigned char *data;
    aclDataType type;
    size_t item;
    int64_t b, s, n, d;
};

static struct grid grid_of(const struct sim_kernel_call *call, enum rotary_tensor which)
{
    const struct sim_view *view = &call->views[which];
    const int64_t *strides = view->strides;
    struct grid grid = {
        .data = call->data[which],
        .type = view->type,
        .item = sim_type_bytes(view->type),
    };
    if (call->layout == ROTARY_TND) {
        grid.s = strides[0];
    } else {
        grid.b = strides[call->layout == ROTARY_BSND ? 0 : 1];
        grid.s = strides[call->layout == ROTARY_BSND ? 1 : 0];
    }
    grid.n = strides[view->rank - 2];
    grid.d = strides[view->rank - 1];
    return grid;
}

static unsigned char *row_of(const struct grid *grid, int64_t b, int64_t s, int64_t n)
{
    return grid->data + (size_t)(b * grid->b + s * grid->s + n * grid->n) * grid->item;
}

static void load_row(const struct grid *grid, int64_t b, int64_t s, int64_t n, int64_t width,
                     float *row)
{
    const unsigned char *from = row_of(grid, b, s, n);
    for (int64_t i = 0; i < width; i++)
        row[i] = rotary_load(from + (size_t)(i * grid->d) * grid->item, grid->type);
}

static void store_row(const struct grid *grid, int64_t b, int64_t s, int64_t n, int64_t width,
                      const float *row)
{
    unsigned char *to = row_of(grid, b, s, n);
    for (int64_t i = 0; i < width; i++)
        rotary_store(to + (size_t)(i * grid->d) * grid->item, grid->type, row[i]);
}

#ifdef OPFERRY_KERNEL_HALVES_SWAPPED
static void swap_halves(float *row, int64_t width)
{
    float half[MAX_WIDTH / 2];
    size_t bytes = (size_t)width / 2 * sizeof half[0];
    memcpy(half, row, bytes);
    memcpy(row, row + width / 2, bytes);
    memcpy(row + width / 2, half, bytes);
}
#endif

static void load_rotation(const struct grid *cos, const struct grid *sin, int64_t b, int64_t s,
                          int64_t width, float *c, float *d)
{
    load_row(cos, b, s, 0, width, c);
    load_row(sin, b, s, 0, width, d);
#ifdef OPFERRY_KERNEL_WRONG_SIGN
    for (int64_t i = 0; i < width; i++)
        d[i] = -d[i];
#endif
#ifdef OPFERRY_KERNEL_HALVES_SWAPPED
    swap_halves(c, width);
    swap_halves(d, width);
#endif
}

static void rotate_back(const struct sim_kernel_call *call, const struct rotary_sizes *sizes,
                        enum rotary_tensor gradient, enum rotary_tensor result, int64_t heads)
{
    struct grid in = grid_of(call, gradient), out = grid_of(call, result);
    struct grid cos = grid_of(call, ROTARY_COS), sin = grid_of(call, ROTARY_SIN);
    int64_t half = sizes->d / 2;
    float c[MAX_WIDTH], d[MAX_WIDTH], g[MAX_WIDTH], r[MAX_WIDTH];
    for (int64_t b = 0; b < sizes->b; b++) {
        for (int64_t s = 0; s < sizes->s; s++) {
            load_rotation(&cos, &sin, sizes->cos_b == 1 ? 0 : b, s, sizes->d, c, d);
            for (int64_t n = 0; n < heads; n++) {
                load_row(&in, b, s, n, sizes->d, g);
                for (int64_t i = 0; i < half; i++) {
                    r[i] = c[i] * g[i] + d[half + i] * g[half + i];
                    r[half + i] = c[half + i] * g[half + i] - d[i] * g[i];
                }
                store_row(&out, b, s, n, sizes->d, r);
            }
        }
    }
}

/* Adds sum(g*x) and sum(g*rot(x)) over the heads of one place to two rows. */
static void add_products(const struct grid *gradient, const struct grid *value, int64_t b,
                         int64_t s, int64_t heads, int64_t width, float *plain, float *rotated)
{
    float g[MAX_WIDTH], x[MAX_WIDTH], p[MAX_WIDTH] = {0}, r[MAX_WIDTH] = {0};
    int64_t half = width / 2;
    for (int64_t n = 0; n < heads; n++) {
        load_row(gradient, b, s, n, width, g);
        load_row(value, b, s, n, width, x);
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
    struct grid gq = grid_of(call, ROTARY_GRAD_QUERY_EMBED), q = grid_of(call, ROTARY_QUERY);
    struct grid gk = grid_of(call, ROTARY_GRAD_KEY_EMBED), k = grid_of(call, ROTARY_KEY);
    bool broadcast = sizes->cos_b < sizes->b;
    for (int64_t b = 0; b < sizes->cos_b; b++) {
        for (int64_t s = 0; s < sizes->s; s++) {
            float sums[4][MAX_WIDTH] = {{0}};
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
                struct grid out = grid_of(call, ROTARY_GRAD_COS + (enum rotary_tensor)which);
                if (out.data != NULL)
                    store_row(&out, b, s, 0, sizes->d, sums[which]);
            }
        }
    }
}

#ifdef OPFERRY_KERNEL_ONE_OFF
/* The last element of grad_key, by more than any tolerance allows. */
static void spoil_one_element(const struct sim_kernel_call *call, const struct rotary_sizes *sizes)
{
    struct grid out = grid_of(call, ROTARY_GRAD_KEY);
    float row[MAX_WIDTH];
    int64_t b = sizes->b - 1, s = sizes->s - 1, n = sizes->key_heads - 1;
    load_row(&out, b, s, n, sizes->d, row);
    float *last = &row[sizes->d - 1];
    *last = isfinite(*last) ? *last + 10.0F : 10.0F;
    store_row(&out, b, s, n, sizes->d, row);
}
#endif

void rotary_run(const struct sim_kernel_call *call)
{
    struct rotary_sizes sizes =
        rotary_sizes_of(&call->views[ROTARY_GRAD_QUERY_EMBED], &call->views[ROTARY_GRAD_KEY_EMBED],
                        &call->views[ROTARY_COS], call->layout);
    rotate_back(call, &sizes, ROTARY_GRAD_QUERY_EMBED, ROTARY_GRAD_QUERY, sizes.query_heads);
    rotate_back(call, &sizes, ROTARY_GRAD_KEY_EMBED, ROTARY_GRAD_KEY, sizes.key_heads);
    /* Without query and key the kernel leaves these two as they are. */
    if (call->data[ROTARY_QUERY] != NULL)
        sum_products(call, &sizes);
#ifdef OPFERRY_KERNEL_ONE_OFF
    spoil_one_element(call, &sizes);
#endif
}

float rotary_first_value(const struct sim_kernel_call *call)
{
    return rotary_load(call->data[ROTARY_GRAD_QUERY_EMBED],
                       call->views[ROTARY_GRAD_QUERY_EMBED].type);
}
