/* What stage one of ApplyRotaryPosEmb refuses, in the order of the device's own host code. */
#include "rotary.h"

#include <stdio.h>

const char *const rotary_forward_names[FORWARD_COUNT] = {"queryRef", "keyRef", "cos", "sin"};

static enum rotary_refusal check_attributes(const struct rotary_arguments *a, char why[256])
{
    if (a->layout < ROTARY_BSND || a->layout > ROTARY_TND)
        snprintf(why, 256, "layout %lld is not 1, 2, 3 or 4", (long long)a->layout);
    else if (rotary_mode_of(a->mode) == ROTARY_NO_MODE)
        snprintf(why, 256, "rotaryMode %.40s is not half, interleave or quarter", a->mode);
    else
        return ROTARY_ACCEPTED;
    return ROTARY_PARAMETER;
}

static enum rotary_refusal check_types(const struct rotary_arguments *a, char why[256])
{
    return rotary_check_types(a, rotary_forward_names, FORWARD_COUNT, why);
}

static enum rotary_refusal check_ranks(const struct rotary_arguments *a, char why[256])
{
    enum rotary_refusal refusal = rotary_check_ranks(a, rotary_forward_names, FORWARD_COUNT, why);
    int rank = a->layout == ROTARY_TND ? 3 : 4;
    for (int i = 0; i < FORWARD_COUNT && refusal == ROTARY_ACCEPTED; i++) {
        if (a->tensors[i]->rank != rank) {
            snprintf(why, 256, "%s has %d dimensions, layout %lld needs %d",
                     rotary_forward_names[i], a->tensors[i]->rank, (long long)a->layout, rank);
            refusal = ROTARY_SHAPE;
        }
    }
    return refusal;
}

static enum rotary_refusal check_cos(const struct rotary_arguments *a, char why[256])
{
    const struct sim_view *cos = a->tensors[ROTARY_COS];
    int n = rotary_axes_of(a->layout).n;
    if (!rotary_same_shape(a->tensors[ROTARY_SIN], cos))
        snprintf(why, 256, "sin and cos differ in shape");
    else if (cos->dims[n] != 1)
        snprintf(why, 256, "N of cos is %lld, not 1", (long long)cos->dims[n]);
    else
        return ROTARY_ACCEPTED;
    return ROTARY_SHAPE;
}

static enum rotary_refusal check_relations(const struct rotary_arguments *a, char why[256])
{
    const struct sim_view *query = a->tensors[FORWARD_QUERY], *key = a->tensors[FORWARD_KEY];
    const struct sim_view *cos = a->tensors[ROTARY_COS];
    struct rotary_axes at = rotary_axes_of(a->layout);
    if (cos->dims[at.s] != query->dims[at.s] || key->dims[at.s] != query->dims[at.s])
        snprintf(why, 256, "S of query, key and cos differ");
    else if (cos->dims[at.d] > query->dims[at.d] || key->dims[at.d] != query->dims[at.d])
        snprintf(why, 256, "D of key is not that of query, or D of cos is larger");
    else if (at.b >= 0 && key->dims[at.b] != query->dims[at.b])
        snprintf(why, 256, "B of query and key differ");
    else if (at.b >= 0 && cos->dims[at.b] != query->dims[at.b] && cos->dims[at.b] != 1)
        snprintf(why, 256, "B of cos is %lld, neither 1 nor %lld", (long long)cos->dims[at.b],
                 (long long)query->dims[at.b]);
    else
        return ROTARY_ACCEPTED;
    return ROTARY_SHAPE;
}

static enum rotary_refusal check_widths(const struct rotary_arguments *a, char why[256])
{
    int d = rotary_axes_of(a->layout).d;
    int64_t widths[] = {a->tensors[FORWARD_QUERY]->dims[d], a->tensors[ROTARY_COS]->dims[d]};
    int multiple = rotary_mode_of(a->mode) == ROTARY_QUARTER ? 4 : 2;
    for (int i = 0; i < 2; i++) {
        if (widths[i] > ROTARY_MAX_WIDTH)
            snprintf(why, 256, "D is %lld, at most %d", (long long)widths[i], ROTARY_MAX_WIDTH);
        else if (widths[i] % multiple != 0)
            snprintf(why, 256, "D is %lld, no multiple of %d", (long long)widths[i], multiple);
        else
            continue;
        return ROTARY_SHAPE;
    }
    return ROTARY_ACCEPTED;
}

static enum rotary_refusal check_extents(const struct rotary_arguments *a, char why[256])
{
    return rotary_check_extents(a, rotary_forward_names, FORWARD_COUNT, why);
}

rotary_check *const rotary_forward_checks[] = {
    check_attributes, check_types,  check_ranks,   check_cos,
    check_relations,  check_widths, check_extents, NULL,
};
