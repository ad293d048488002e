/* What libnnopbase and the operator libraries share with the runtime: handles, tensors, executors
 * and the launch of a kernel. */
#ifndef OPFERRY_SIM_OPERATOR_H
#define OPFERRY_SIM_OPERATOR_H

#include "../aclnn_sim.h"
#include "base.h"

#define SIM_MAX_DIMS 8
#define SIM_MAX_TENSORS 10

/* ---- handles: never an address, never used twice, and wrong if cut to 32 bits ---- */

enum sim_kind {
    SIM_KIND_CONTEXT = 1,
    SIM_KIND_STREAM,
    SIM_KIND_EVENT,
    SIM_KIND_TENSOR,
    SIM_KIND_EXECUTOR,
};

struct sim_object {
    struct sim_object *next_in_bucket;
    enum sim_kind kind;
    uint64_t serial;
};

SIM_SHARED void sim_handle_add(struct sim_object *object, enum sim_kind kind);
SIM_SHARED void sim_handle_remove(struct sim_object *object);
SIM_SHARED void *sim_handle(const struct sim_object *object);
/* Returns the object, or null and in *why* what is wrong with the handle. */
SIM_SHARED void *sim_handle_find(const void *handle, enum sim_kind kind, char why[128]);
SIM_SHARED void *sim_handle_by_serial(uint64_t serial);

/* ---- tensors and executors ---- */

struct sim_view {
    aclDataType type;
    aclFormat format;
    int rank;
    int64_t dims[SIM_MAX_DIMS];
    int64_t strides[SIM_MAX_DIMS];
    int64_t offset;
    int storage_rank;
    int64_t storage_dims[SIM_MAX_DIMS];
    void *address;
};

struct sim_tensor {
    struct sim_object object;
    struct sim_view view;
};

/* An operator's kernel, as its library describes it. */
struct sim_kernel_call;
struct sim_kernel {
    const char *operator_name;
    enum sim_function function; /* stage two */
    int input_count;            /* the tensors after these are outputs */
    int overwritten_count;      /* the first inputs, so many of them, are outputs too */
    int tensor_count;
    const char *const *tensor_names;
    void (*run)(const struct sim_kernel_call *call);
    float (*first_value)(const struct sim_kernel_call *call);
};

struct sim_executor {
    struct sim_object object;
    const char *operator_name;
    uint64_t tensors[SIM_MAX_TENSORS]; /* serial numbers; 0: absent */
    struct sim_view views[SIM_MAX_TENSORS];
    int64_t layout, mode;
    uint64_t workspace_bytes;
    int device;
    bool repeatable;
};

/* What a kernel sees: accessible addresses of the first elements, null for what is absent. */
struct sim_kernel_call {
    const struct sim_kernel *kernel;
    struct sim_view views[SIM_MAX_TENSORS];
    unsigned char *data[SIM_MAX_TENSORS];
    unsigned char *data_ends[SIM_MAX_TENSORS]; /* where the allocation ends */
    unsigned char *workspace;
    uint64_t workspace_bytes;
    int64_t layout, mode;
};

SIM_SHARED size_t sim_type_bytes(aclDataType type);
/* Describes in *text* a task that uses a tensor and has not been synchronised; false: none. */
SIM_SHARED bool sim_tensor_in_use(uint64_t serial, char text[160]);
SIM_SHARED void sim_executor_free(struct sim_executor *executor);
/* Stage two frees a normal executor, whatever comes of the call. */
SIM_SHARED void sim_executor_spend(aclOpExecutor *executor);
/* Stage two, with the lock held: checks all that it can and puts the kernel on the stream. */
SIM_SHARED aclError sim_launch(struct sim_call *call, const struct sim_kernel *kernel,
                               void *workspace, uint64_t workspace_bytes, aclOpExecutor *executor,
                               aclrtStream stream);

#endif
