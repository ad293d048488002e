/* What the contracts of the rotary operators share. */
#include "rotary.h"

#include <stdio.h>
#include <string.h>

struct rotary_axes rotary_axes_of(int64_t layout)
{
    static const struct rotary_axes axes[] = {
        [ROTARY_BSND] = {0, 1, 2, 3},
        [ROTARY_SBND] = {1, 0, 2, 3},
        [ROTARY_BNSD] = {0, 2, 1, 3},
        [ROTARY_TND] = {-1, 0, 1, 2},
    };
    return axes[layout];
}

struct rotary_sizes rotary_sizes_of(const struct sim_view *query, const struct sim_view *key,
                                    const struct sim_view *cos, int64_t layout)
{
    struct rotary_axes at = rotary_axes_of(layout);
    struct rotary_sizes sizes = {
        .b = at.b < 0 ? 1 : query->dims[at.b],
        .s = query->dims[at.s],
        .d = query->dims[at.d],
        .query_heads = query->dims[at.n],
        .key_heads = key->dims[at.n],
        .cos_b = at.b < 0 ? 1 : cos->dims[at.b],
        .cos_d = cos->dims[at.d],
    };
    return sizes;
}

enum rotary_mode rotary_mode_of(const char *mode)
{
    if (mode == NULL || strcmp(mode, "half") == 0)
        return ROTARY_HALF;
    if (strcmp(mode, "interleave") == 0)
        return ROTARY_INTERLEAVE;
    return strcmp(mode, "quarter") == 0 ? ROTARY_QUARTER : ROTARY_NO_MODE;
}

bool rotary_same_shape(const struct sim_view *one, const struct sim_view *other)
{
    return one->rank == other->rank &&
           memcmp(one->dims, other->dims, (size_t)one->rank * sizeof one->dims[0]) == 0;
}

static bool is_known_type(aclDataType type)
{
    return type == ACL_FLOAT || type == ACL_FLOAT16 || type == ACL_BF16;
}

enum rotary_refusal rotary_check_types(const struct rotary_arguments *a, const char *const *names,
                                       int count, char why[256])
{
    aclDataType first = a->tensors[0]->type;
    for (int i = 0; i < count; i++) {
        const struct sim_view *view = a->tensors[i];
        if (view == NULL)
            continue;
        if (!is_known_type(view->type))
            snprintf(why, 256, "%s has data type %d, not 0, 1 or 27", names[i], (int)view->type);
        else if (view->type != first)
            snprintf(why, 256, "%s has data type %d, %s has %d", names[i], (int)view->type,
                     names[0], (int)first);
        else if (view->format != ACL_FORMAT_ND)
            snprintf(why, 256, "%s has format %d, not ND", names[i], (int)view->format);
        else
            continue;
        return ROTARY_PARAMETER;
    }
    return ROTARY_ACCEPTED;
}

enum rotary_refusal rotary_check_ranks(const struct rotary_arguments *a, const char *const *names,
                                       int count, char why[256])
{
    for (int i = 0; i < count; i++) {
        if (a->tensors[i] != NULL && a->tensors[i]->rank != 3 && a->tensors[i]->rank != 4) {
            snprintf(why, 256, "%s has %d dimensions, not 3 or 4", names[i], a->tensors[i]->rank);
            return ROTARY_SHAPE;
        }
    }
    return ROTARY_ACCEPTED;
}

enum rotary_refusal rotary_check_extents(const struct rotary_arguments *a,
                                         const char *const *names, int count, char why[256])
{
    for (int i = 0; i < count; i++) {
        for (int k = 0; a->tensors[i] != NULL && k < a->tensors[i]->rank; k++) {
            if (a->tensors[i]->dims[k] <= 0) {
                snprintf(why, 256, "axis %d of %s is %lld", k, names[i],
                         (long long)a->tensors[i]->dims[k]);
                return ROTARY_SHAPE;
            }
        }
    }
    return ROTARY_ACCEPTED;
}
