/* The rotary operators, each in three parts: what stage one refuses, the two stages, the kernel. */
#ifndef OPFERRY_SIM_ROTARY_H
#define OPFERRY_SIM_ROTARY_H

#include "../runtime/operator.h"

#define ROTARY_MAX_WIDTH 1024
#define ROTARY_SYSTEM_WORKSPACE_BYTES (UINT64_C(16) * 1024 * 1024)

/* The tensors of ApplyRotaryPosEmbGrad. The first four are the same kinds in both operators. */
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

/* The tensors of ApplyRotaryPosEmb; cos and sin are where they are above. */
enum { FORWARD_QUERY, FORWARD_KEY, FORWARD_COUNT = ROTARY_SIN + 1 };

enum rotary_layout { ROTARY_BSND = 1, ROTARY_SBND = 2, ROTARY_BNSD = 3, ROTARY_TND = 4 };

enum rotary_mode { ROTARY_NO_MODE, ROTARY_HALF, ROTARY_INTERLEAVE, ROTARY_QUARTER };

struct rotary_arguments {
    const struct sim_view *tensors[ROTARY_COUNT]; /* null: absent */
    const char *mode;                             /* null: half */
    int64_t layout;
};

/* Where a layout has its axes; -1: nowhere. */
struct rotary_axes {
    int b, s, n, d;
};

/* The sizes of a call, whatever its layout; TND has B = 1. */
struct rotary_sizes {
    int64_t b, s, d;
    int64_t query_heads, key_heads;
    int64_t cos_b, cos_d;
};

/* What a call is refused for: a status of 161002, or a shape's, which may show as 561002. */
enum rotary_refusal { ROTARY_ACCEPTED, ROTARY_PARAMETER, ROTARY_SHAPE };

typedef enum rotary_refusal rotary_check(const struct rotary_arguments *arguments, char why[256]);

/* An operator as its two exported functions need it. */
struct rotary_operator {
    const struct sim_kernel *kernel;
    enum sim_function first_stage;
    rotary_check *const *checks; /* in the order of the device's own host code; null ends them */
    bool (*is_optional)(int which);
    uint64_t (*workspace)(const struct rotary_arguments *arguments);
};

/* rotary_stages.c */
aclnnStatus rotary_first_stage(const struct rotary_operator *operator,
                               const aclTensor *const *handles, const char *mode, int64_t layout,
                               uint64_t *workspace_bytes, aclOpExecutor **executor);
aclnnStatus rotary_second_stage(const struct rotary_operator *operator, void *workspace,
                                uint64_t workspace_bytes, aclOpExecutor *executor,
                                aclrtStream stream);
float rotary_first_value(const struct sim_kernel_call *call);

/* rotary_rules.c */
struct rotary_axes rotary_axes_of(int64_t layout);
struct rotary_sizes rotary_sizes_of(const struct sim_view *query, const struct sim_view *key,
                                    const struct sim_view *cos, int64_t layout);
enum rotary_mode rotary_mode_of(const char *mode); /* null: half */
bool rotary_same_shape(const struct sim_view *one, const struct sim_view *other);
enum rotary_refusal rotary_check_types(const struct rotary_arguments *a, const char *const *names,
                                       int count, char why[256]);
enum rotary_refusal rotary_check_ranks(const struct rotary_arguments *a, const char *const *names,
                                       int count, char why[256]);
enum rotary_refusal rotary_check_extents(const struct rotary_arguments *a,
                                         const char *const *names, int count, char why[256]);

/* rotary_grad_check.c, rotary_grad_kernel.c */
extern const char *const rotary_grad_names[ROTARY_COUNT];
extern rotary_check *const rotary_grad_checks[];
uint64_t rotary_grad_workspace(const struct rotary_arguments *arguments);
void rotary_grad_run(const struct sim_kernel_call *call);

/* rotary_forward_check.c, rotary_forward_kernel.c */
extern const char *const rotary_forward_names[FORWARD_COUNT];
extern rotary_check *const rotary_forward_checks[];
void rotary_forward_run(const struct sim_kernel_call *call);

/* rotary_rows.c: rows of tensors as float32. One tensor with its axes; strides in elements. */
struct grid {
    unsigned char *data;
    aclDataType type;
    size_t item;
    int64_t b, s, n, d;
};
struct grid rotary_grid(const struct sim_kernel_call *call, int which);
void rotary_load_row(const struct grid *grid, int64_t b, int64_t s, int64_t n, int64_t width,
                     float *row);
void rotary_store_row(const struct grid *grid, int64_t b, int64_t s, int64_t n, int64_t width,
                      const float *row);
void rotary_load_tables(const struct grid *cos, const struct grid *sin, int64_t b, int64_t s,
                        int64_t width, float *c, float *d);
/* Does nothing but in the package that gives one wrong element. */
void rotary_spoil(const struct sim_kernel_call *call, int which, const struct rotary_sizes *sizes);

/* number_formats.c: exact to float, and back with one rounding to the nearest, ties to even. */
float rotary_load(const unsigned char *bytes, aclDataType type);
void rotary_store(unsigned char *bytes, aclDataType type, float value);

#endif
