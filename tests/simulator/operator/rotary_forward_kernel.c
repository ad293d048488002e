/* Rotary position embedding, in place. Two products, each rounded to float32, then one sum. */
#include "rotary.h"

/* How many groups of two runs the rotated elements of a row are. */
static int64_t groups_of(int64_t mode, int64_t width)
{
    return mode == ROTARY_HALF ? 1 : mode == ROTARY_QUARTER ? 2 : width / 2;
}

static void rotate(const struct sim_kernel_call *call, const struct rotary_sizes *sizes, int which,
                   int64_t heads)
{
    struct grid x = rotary_grid(call, which);
    struct grid cos = rotary_grid(call, ROTARY_COS), sin = rotary_grid(call, ROTARY_SIN);
    int64_t width = sizes->cos_d, groups = groups_of(call->mode, width);
    int64_t run = width / (2 * groups);
    float c[ROTARY_MAX_WIDTH], d[ROTARY_MAX_WIDTH], from[ROTARY_MAX_WIDTH], to[ROTARY_MAX_WIDTH];
    for (int64_t b = 0; b < sizes->b; b++) {
        for (int64_t s = 0; s < sizes->s; s++) {
            rotary_load_tables(&cos, &sin, sizes->cos_b == 1 ? 0 : b, s, width, c, d);
            for (int64_t n = 0; n < heads; n++) {
                rotary_load_row(&x, b, s, n, width, from);
                for (int64_t g = 0; g < groups; g++) {
                    for (int64_t i = 2 * g * run; i < (2 * g + 1) * run; i++) {
                        to[i] = from[i] * c[i] - from[i + run] * d[i];
                        to[i + run] = from[i + run] * c[i + run] + from[i] * d[i + run];
                    }
                }
                /* What lies behind the width of cos stays as it is. */
                rotary_store_row(&x, b, s, n, width, to);
            }
        }
    }
}

void rotary_forward_run(const struct sim_kernel_call *call)
{
    struct rotary_sizes sizes =
        rotary_sizes_of(&call->views[FORWARD_QUERY], &call->views[FORWARD_KEY],
                        &call->views[ROTARY_COS], call->layout);
    rotate(call, &sizes, FORWARD_QUERY, sizes.query_heads);
    rotate(call, &sizes, FORWARD_KEY, sizes.key_heads);
    rotary_spoil(call, FORWARD_KEY, &sizes);
}
