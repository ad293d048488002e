/* What stage one of ApplyRotaryPosEmbGrad refuses, in the order of the device's own host code: the first rule that is broken
 * is the one that is reported. */
#include "rotary.h"

#include <stdio.h>

const char *const rotary_grad_names[ROTARY_COUNT] = {
    "gradQueryEmbed", "gradKeyEmbed", "cos",        "sin",        "queryOptional",
    "keyOptional",    "gradQueryOut", "gradKeyOut", "gradCosOut", "gradSinOut",
};

#define INPUTS ROTARY_GRAD_QUERY

static enum rotary_refusal check_attributes(const struct rotary_arguments *a, char why[256])
{
    bool query = a->tensors[ROTARY_QUERY] != NULL, key = a->tensors[ROTARY_KEY] != NULL;
    if (rotary_mode_of(a->mode) != ROTARY_HALF)
        snprintf(why, 256, "rotaryMode %.40s is not supported, only half", a->mode);
    else if (a->layout == ROTARY_BNSD)
        snprintf(why, 256, "layout 3 (BNSD) is reserved");
    else if (a->layout != ROTARY_BSND && a->layout != ROTARY_SBND && a->layout != ROTARY_TND)
        snprintf(why, 256, "layout %lld is not 1, 2 or 4", (long long)a->layout);
    else if (query != key)
        snprintf(why, 256, "query and key must be given both or neither");
    else
        return ROTARY_ACCEPTED;
    return ROTARY_PARAMETER;
}

static enum rotary_refusal check_types(const struct rotary_arguments *a, char why[256])
{
    return rotary_check_types(a, rotary_grad_names, ROTARY_COUNT, why);
}

static enum rotary_refusal check_ranks_and_twins(const struct rotary_arguments *a, char why[256])
{
    static const int twins[][2] = {{ROTARY_SIN, ROTARY_COS},
                                   {ROTARY_QUERY, ROTARY_GRAD_QUERY_EMBED},
                                   {ROTARY_KEY, ROTARY_GRAD_KEY_EMBED}};
    if (rotary_check_ranks(a, rotary_grad_names, INPUTS, why) != ROTARY_ACCEPTED)
        return ROTARY_SHAPE;
    for (size_t i = 0; i < sizeof twins / sizeof twins[0]; i++) {
        if (a->tensors[twins[i][0]] != NULL &&
            !rotary_same_shape(a->tensors[twins[i][0]], a->tensors[twins[i][1]])) {
            snprintf(why, 256, "%s and %s differ in shape", rotary_grad_names[twins[i][0]],
                     rotary_grad_names[twins[i][1]]);
            return ROTARY_SHAPE;
        }
    }
    for (int i = ROTARY_GRAD_QUERY_EMBED; i <= ROTARY_GRAD_KEY_EMBED; i++) {
        if (a->tensors[i]->rank != a->tensors[ROTARY_COS]->rank) {
            snprintf(why, 256, "%s and cos differ in their number of dimensions", rotary_grad_names[i]);
            return ROTARY_SHAPE;
        }
    }
    return ROTARY_ACCEPTED;
}

static enum rotary_refusal check_widths(const struct rotary_arguments *a, char why[256])
{
    const struct sim_view *query = a->tensors[ROTARY_GRAD_QUERY_EMBED];
    int64_t width = query->dims[query->rank - 1];
    for (int i = 0; i < INPUTS; i++) {
        const struct sim_view *view = a->tensors[i];
        if (view != NULL && view->dims[view->rank - 1] != width) {
            snprintf(why, 256, "D of %s is %lld, of %s %lld", rotary_grad_names[i],
                     (long long)view->dims[view->rank - 1], rotary_grad_names[0], (long long)width);
            return ROTARY_SHAPE;
        }
    }
    if (width > ROTARY_MAX_WIDTH)
        snprintf(why, 256, "D is %lld, at most %d", (long long)width, ROTARY_MAX_WIDTH);
    else if (width % 2 != 0)
        snprintf(why, 256, "D is %lld, not even", (long long)width);
    else
        return ROTARY_ACCEPTED;
    return ROTARY_SHAPE;
}

static enum rotary_refusal check_layout(const struct rotary_arguments *a, char why[256])
{
    const struct sim_view *query = a->tensors[ROTARY_GRAD_QUERY_EMBED];
    const struct sim_view *key = a->tensors[ROTARY_GRAD_KEY_EMBED];
    int rank = a->layout == ROTARY_TND ? 3 : 4;
    for (int i = 0; i < query->rank; i++) {
        if (i != query->rank - 2 && query->dims[i] != key->dims[i]) {
            snprintf(why, 256, "gradKeyEmbed differs from gradQueryEmbed in axis %d", i);
            return ROTARY_SHAPE;
        }
    }
    if (rotary_check_extents(a, rotary_grad_names, INPUTS, why) != ROTARY_ACCEPTED)
        return ROTARY_SHAPE;
    if (query->rank == rank)
        return ROTARY_ACCEPTED;
    snprintf(why, 256, "layout %lld needs %d dimensions", (long long)a->layout, rank);
    return ROTARY_SHAPE;
}

static enum rotary_refusal check_cos(const struct rotary_arguments *a, char why[256])
{
    const struct sim_view *query = a->tensors[ROTARY_GRAD_QUERY_EMBED];
    const struct sim_view *cos = a->tensors[ROTARY_COS];
    /* The axes of S (or T) and B in the order in which they are looked at; -1: there is none. */
    int s = a->layout == ROTARY_BSND ? 1 : 0;
    int b = a->layout == ROTARY_BSND ? 0 : a->layout == ROTARY_SBND ? 1 : -1;
    bool s_wrong = cos->dims[s] != query->dims[s];
    bool b_wrong = b >= 0 && cos->dims[b] != 1 && cos->dims[b] != query->dims[b];
    if (cos->dims[cos->rank - 2] != 1)
        snprintf(why, 256, "N of cos is %lld, not 1", (long long)cos->dims[cos->rank - 2]);
    else if (s_wrong && !(a->layout == ROTARY_SBND && b_wrong))
        snprintf(why, 256, "%s of cos is %lld, of gradQueryEmbed %lld", b < 0 ? "T" : "S",
                 (long long)cos->dims[s], (long long)query->dims[s]);
    else if (b_wrong)
        snprintf(why, 256, "B of cos is %lld, neither 1 nor %lld", (long long)cos->dims[b],
                 (long long)query->dims[b]);
    else
        return ROTARY_ACCEPTED;
    return ROTARY_SHAPE;
}

static bool is_contiguous(const struct sim_view *view)
{
    int64_t step = 1;
    for (int i = view->rank - 1; i >= 0; i--) {
        if (view->dims[i] != 1 && view->strides[i] != step)
            return false;
        step *= view->dims[i];
    }
    return true;
}

static enum rotary_refusal check_outputs(const struct rotary_arguments *a, char why[256])
{
    static const int like[] = {ROTARY_GRAD_QUERY_EMBED, ROTARY_GRAD_KEY_EMBED, ROTARY_COS,
                               ROTARY_SIN};
    for (int i = ROTARY_GRAD_QUERY; i < ROTARY_COUNT; i++) {
        const struct sim_view *view = a->tensors[i];
        const struct sim_view *model = a->tensors[like[i - ROTARY_GRAD_QUERY]];
        if (view == NULL)
            continue;
        if (!rotary_same_shape(view, model))
            snprintf(why, 256, "%s has not the shape of %s", rotary_grad_names[i],
                     rotary_grad_names[like[i - ROTARY_GRAD_QUERY]]);
        else if (!is_contiguous(view))
            snprintf(why, 256, "%s is not contiguous", rotary_grad_names[i]);
        else
            continue;
        return ROTARY_SHAPE;
    }
    return ROTARY_ACCEPTED;
}

rotary_check *const rotary_grad_checks[] = {
    check_attributes, check_types, check_ranks_and_twins, check_widths,
    check_layout,     check_cos,   check_outputs,         NULL,
};

uint64_t rotary_grad_workspace(const struct rotary_arguments *a)
{
    const struct sim_view *query = a->tensors[ROTARY_GRAD_QUERY_EMBED];
    struct rotary_sizes sizes = rotary_sizes_of(query, a->tensors[ROTARY_GRAD_KEY_EMBED],
                                                a->tensors[ROTARY_COS], a->layout);
    int64_t heads =
        sizes.query_heads > sizes.key_heads ? sizes.query_heads : sizes.key_heads;
    bool sums = a->tensors[ROTARY_QUERY] != NULL;
    bool template_a = heads == 1 && sizes.cos_b == sizes.b;
    uint64_t width = sums && !template_a ? 4 : sim_type_bytes(query->type);
    uint64_t bytes = (uint64_t)sizes.b * (uint64_t)sizes.s * (uint64_t)heads * (uint64_t)sizes.d *
                     width * 2;
    return sums && template_a ? bytes + ROTARY_SYSTEM_WORKSPACE_BYTES : bytes;
}
