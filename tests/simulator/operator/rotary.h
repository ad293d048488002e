/* ApplyRotaryPosEmbGrad, in three parts: what stage one refuses, the two stages, the kernel. */
#ifndef OPFERRY_SIM_ROTARY_H
#define OPFERRY_SIM_ROTARY_H

#include "../runtime/operator.h"

enum rotary_tensor {
    ROTARY_GRAD_QUERY_EMBED,
    ROTARY_GRAD_KEY_EMBED,
    ROTARY_COS,
    ROTARY_SIN,
    ROTARY_QUERY,
    ROTARY_KEY,
    ROTARY_GRAD_QUERY,
    ROTARY_GRAD_KEY,
    ROTARY_GRAD_COS,
    ROTARY_GRAD_SIN,
    ROTARY_COUNT,
};

enum rotary_layout { ROTARY_BSND = 1, ROTARY_SBND = 2, ROTARY_BNSD = 3, ROTARY_TND = 4 };

extern const char *const rotary_names[ROTARY_COUNT];

struct rotary_arguments {
    const struct sim_view *tensors[ROTARY_COUNT]; /* null: absent */
    const char *mode;                             /* null: half */
    int64_t layout;
};

/* The sizes of a call with the axes of BSND, whatever its layout; TND has B = 1. */
struct rotary_sizes {
    int64_t b, s, d;
    int64_t query_heads, key_heads;
    int64_t cos_b;
};

/* What a call is refused for: a status of 161002, or a shape's, which may show as 561002. */
enum rotary_refusal { ROTARY_ACCEPTED, ROTARY_PARAMETER, ROTARY_SHAPE };

enum rotary_refusal rotary_check(const struct rotary_arguments *arguments, char why[256]);
struct rotary_sizes rotary_sizes_of(const struct sim_view *grad_query,
                                    const struct sim_view *grad_key, const struct sim_view *cos,
                                    int64_t layout);
uint64_t rotary_workspace(const struct rotary_arguments *arguments);
void rotary_run(const struct sim_kernel_call *call);
float rotary_first_value(const struct sim_kernel_call *call);

/* number_formats.c: exact to float, and back with one rounding to the nearest, ties to even. */
float rotary_load(const unsigned char *bytes, aclDataType type);
void rotary_store(unsigned char *bytes, aclDataType type, float value);

#endif
