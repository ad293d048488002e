/* Rows of tensors, whatever their layout and type, as float32.
 *
 * OPFERRY_KERNEL_... make wrong kernels of it, for the packages that are to be found out. */
#include "rotary.h"

#include <math.h>
#include <string.h>

struct grid rotary_grid(const struct sim_kernel_call *call, int which)
{
    const struct sim_view *view = &call->views[which];
    struct rotary_axes at = rotary_axes_of(call->layout);
    struct grid grid = {
        .data = call->data[which],
        .type = view->type,
        .item = sim_type_bytes(view->type),
        .b = at.b < 0 ? 0 : view->strides[at.b],
        .s = view->strides[at.s],
        .n = view->strides[at.n],
        .d = view->strides[at.d],
    };
    return grid;
}

static unsigned char *row_of(const struct grid *grid, int64_t b, int64_t s, int64_t n)
{
    return grid->data + (size_t)(b * grid->b + s * grid->s + n * grid->n) * grid->item;
}

void rotary_load_row(const struct grid *grid, int64_t b, int64_t s, int64_t n, int64_t width,
                     float *row)
{
    const unsigned char *from = row_of(grid, b, s, n);
    for (int64_t i = 0; i < width; i++)
        row[i] = rotary_load(from + (size_t)(i * grid->d) * grid->item, grid->type);
}

void rotary_store_row(const struct grid *grid, int64_t b, int64_t s, int64_t n, int64_t width,
                      const float *row)
{
    unsigned char *to = row_of(grid, b, s, n);
    for (int64_t i = 0; i < width; i++)
        rotary_store(to + (size_t)(i * grid->d) * grid->item, grid->type, row[i]);
}

#ifdef OPFERRY_KERNEL_HALVES_SWAPPED
static void swap_halves(float *row, int64_t width)
{
    float half[ROTARY_MAX_WIDTH / 2];
    size_t bytes = (size_t)width / 2 * sizeof half[0];
    memcpy(half, row, bytes);
    memcpy(row, row + width / 2, bytes);
    memcpy(row + width / 2, half, bytes);
}
#endif

void rotary_load_tables(const struct grid *cos, const struct grid *sin, int64_t b, int64_t s,
                        int64_t width, float *c, float *d)
{
    rotary_load_row(cos, b, s, 0, width, c);
    rotary_load_row(sin, b, s, 0, width, d);
#ifdef OPFERRY_KERNEL_WRONG_SIGN
    for (int64_t i = 0; i < width; i++)
        d[i] = -d[i];
#endif
#ifdef OPFERRY_KERNEL_HALVES_SWAPPED
    swap_halves(c, width);
    swap_halves(d, width);
#endif
}

void rotary_spoil(const struct sim_kernel_call *call, int which, const struct rotary_sizes *sizes)
{
#ifdef OPFERRY_KERNEL_ONE_OFF
    /* The last element of the key's result, by more than any tolerance allows. */
    struct grid out = rotary_grid(call, which);
    float row[ROTARY_MAX_WIDTH];
    int64_t b = sizes->b - 1, s = sizes->s - 1, n = sizes->key_heads - 1;
    rotary_load_row(&out, b, s, n, sizes->d, row);
    float *last = &row[sizes->d - 1];
    *last = isfinite(*last) ? *last + 10.0F : 10.0F;
    rotary_store_row(&out, b, s, n, sizes->d, row);
#else
    (void)call, (void)which, (void)sizes;
#endif
}
