/* libnnopbase.so: tensors and executors. Their state lies in libascendcl.so like all other. */
#include "../runtime/operator.h"

#include <stdlib.h>

aclnnStatus aclnnInit(const char *configPath)
{
    static bool initialised;
    (void)configPath;
    struct sim_call call;
    aclError status = sim_enter(&call, SIM_aclnnInit, SIM_NEEDS_INIT);
    if (status == ACL_SUCCESS && initialised)
        status = sim_violate(&call, ACLNN_ERR_INNER, "called a second time");
    else if (status == ACL_SUCCESS)
        initialised = true;
    return sim_leave(&call, status);
}

aclnnStatus aclnnFinalize(void)
{
    static bool finalised;
    struct sim_call call;
    aclError status = sim_enter(&call, SIM_aclnnFinalize, SIM_NEEDS_INIT | SIM_WHEN_LOST);
    if (status == ACL_SUCCESS && finalised)
        status = sim_violate(&call, ACLNN_ERR_INNER, "called a second time");
    else if (status == ACL_SUCCESS)
        finalised = true;
    return sim_leave(&call, status);
}

/* Without strides a tensor is contiguous. */
static void fill_strides(struct sim_view *view, const int64_t *strides)
{
    int64_t step = 1;
    for (int i = view->rank - 1; i >= 0; i--) {
        view->strides[i] = strides == NULL ? step : strides[i];
        if (view->dims[i] > 0 && __builtin_mul_overflow(step, view->dims[i], &step))
            step = INT64_MAX;
    }
}

static const char *fill_view(struct sim_view *view, const int64_t *strides)
{
    if (view->rank > SIM_MAX_DIMS || view->storage_rank > SIM_MAX_DIMS)
        return "more than 8 dimensions";
    if (view->offset < 0)
        return "a negative offset";
    fill_strides(view, strides);
    for (int i = 0; i < view->rank; i++)
        if (view->strides[i] < 0)
            return "a negative stride";
    for (int i = 0; i < view->storage_rank; i++)
        if (view->storage_dims[i] < 0)
            return "a negative storage dimension";
    return NULL;
}

aclTensor *aclCreateTensor(const int64_t *viewDims, uint64_t viewDimsNum, aclDataType dataType,
                           const int64_t *stride, int64_t offset, aclFormat format,
                           const int64_t *storageDims, uint64_t storageDimsNum, void *tensorData)
{
    struct sim_call call;
    aclError status = sim_enter(&call, SIM_aclCreateTensor, SIM_NEEDS_INIT | SIM_WHEN_LOST);
    struct sim_view view = {.type = dataType, .format = format, .offset = offset,
                            .address = tensorData};
    const char *wrong = NULL;
    if (status != ACL_SUCCESS || call.effects.null_answer) {
        sim_leave(&call, status);
        return NULL;
    }
    if ((viewDims == NULL && viewDimsNum > 0) || (storageDims == NULL && storageDimsNum > 0))
        wrong = "a number of dimensions without the dimensions";
    view.rank = viewDimsNum > SIM_MAX_DIMS ? SIM_MAX_DIMS + 1 : (int)viewDimsNum;
    view.storage_rank = storageDimsNum > SIM_MAX_DIMS ? SIM_MAX_DIMS + 1 : (int)storageDimsNum;
    for (int i = 0; wrong == NULL && i < view.rank && i < SIM_MAX_DIMS; i++)
        view.dims[i] = viewDims[i];
    for (int i = 0; wrong == NULL && i < view.storage_rank && i < SIM_MAX_DIMS; i++)
        view.storage_dims[i] = storageDims[i];
    if (wrong == NULL)
        wrong = fill_view(&view, stride);
    struct sim_tensor *tensor = NULL;
    if (wrong != NULL) {
        status = sim_violate(&call, ACLNN_ERR_PARAM_INVALID, "%s", wrong);
    } else {
        tensor = calloc(1, sizeof *tensor);
        tensor->view = view;
        sim_handle_add(&tensor->object, SIM_KIND_TENSOR);
        sim_gauge(SIM_GAUGE_TENSORS, 1);
    }
    void *handle = tensor == NULL ? NULL : sim_handle(&tensor->object);
    sim_leave(&call, status);
    return handle;
}

aclnnStatus aclDestroyTensor(const aclTensor *tensor)
{
    struct sim_call call;
    char text[160];
    aclError status = sim_enter(&call, SIM_aclDestroyTensor, SIM_NEEDS_INIT | SIM_WHEN_LOST);
    if (status != ACL_SUCCESS)
        return sim_leave(&call, status);
    struct sim_tensor *found = sim_handle_find(tensor, SIM_KIND_TENSOR, text);
    if (found == NULL) {
        status = sim_violate(&call, ACLNN_ERR_PARAM_INVALID, "%s", text);
    } else if (sim_tensor_in_use(found->object.serial, text)) {
        status = sim_violate(&call, ACLNN_ERR_PARAM_INVALID,
                             "destroyed before the stream was synchronised: %s uses it", text);
    } else {
        sim_handle_remove(&found->object);
        sim_gauge(SIM_GAUGE_TENSORS, -1);
        free(found);
    }
    return sim_leave(&call, status);
}

aclnnStatus aclSetAclOpExecutorRepeatable(aclOpExecutor *executor)
{
    struct sim_call call;
    char why[128];
    aclError status =
        sim_enter(&call, SIM_aclSetAclOpExecutorRepeatable, SIM_NEEDS_INIT | SIM_WHEN_LOST);
    if (status != ACL_SUCCESS)
        return sim_leave(&call, status);
    struct sim_executor *found = sim_handle_find(executor, SIM_KIND_EXECUTOR, why);
    if (found == NULL)
        status = sim_violate(&call, ACLNN_ERR_INNER_NULLPTR, "%s", why);
    else
        found->repeatable = true;
    return sim_leave(&call, status);
}

aclnnStatus aclDestroyAclOpExecutor(aclOpExecutor *executor)
{
    struct sim_call call;
    char why[128];
    aclError status = sim_enter(&call, SIM_aclDestroyAclOpExecutor, SIM_NEEDS_INIT | SIM_WHEN_LOST);
    if (status != ACL_SUCCESS)
        return sim_leave(&call, status);
    struct sim_executor *found = sim_handle_find(executor, SIM_KIND_EXECUTOR, why);
    if (found == NULL)
        status = sim_violate(&call, ACLNN_ERR_INNER_NULLPTR, "%s", why);
    else if (!found->repeatable)
        status = sim_violate(&call, ACLNN_ERR_INNER_CREATE_EXECUTOR,
                             "the executor is not repeatable; stage two is what frees it");
    else
        sim_executor_free(found);
    return sim_leave(&call, status);
}
