/* Stage two: everything that must hold when a kernel is put on a stream. */
#include "objects.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

size_t sim_type_bytes(aclDataType type)
{
    switch ((int)type) {
    case ACL_FLOAT:
    case ACL_INT32:
        return 4;
    case ACL_FLOAT16:
    case ACL_BF16:
        return 2;
    case ACL_INT8:
        return 1;
    default:
        return 8;
    }
}

void sim_executor_free(struct sim_executor *executor)
{
    sim_handle_remove(&executor->object);
    sim_gauge(SIM_GAUGE_EXECUTORS, -1);
    free(executor);
}

void sim_executor_spend(aclOpExecutor *handle)
{
    char why[128];
    struct sim_executor *executor = sim_handle_find(handle, SIM_KIND_EXECUTOR, why);
    if (executor != NULL && !executor->repeatable)
        sim_executor_free(executor);
}

static aclError find_executor(struct sim_call *call, aclOpExecutor *handle,
                              const struct sim_kernel *kernel, struct sim_executor **executor)
{
    char why[128];
    *executor = sim_handle_find(handle, SIM_KIND_EXECUTOR, why);
    if (*executor == NULL) {
        aclError status = handle == NULL ? ACLNN_ERR_INNER_NULLPTR : sim_settings.reuse_status;
        sim_violate(call, status,
                    "%s; an executor that is not repeatable is gone after its one stage two", why);
        if (status == 0)
            sim_crash(SIGSEGV);
        return status;
    }
    if (strcmp((*executor)->operator_name, kernel->operator_name) != 0)
        return sim_violate(call, ACLNN_ERR_INNER_CREATE_EXECUTOR, "the executor is of operator %s",
                           (*executor)->operator_name);
    if ((*executor)->device != call->device)
        return sim_violate(call, ACL_ERROR_RT_STREAM_CONTEXT,
                           "stage one was called on device %d, stage two on device %d",
                           (*executor)->device, call->device);
    return ACL_SUCCESS;
}

/* The number of elements that a view reaches over, from the storage's first; false: too many. */
static bool reach_of(const struct sim_view *view, int64_t *reach)
{
    int64_t last = view->offset, step;
    for (int i = 0; i < view->rank; i++)
        if (__builtin_mul_overflow(view->dims[i] - 1, view->strides[i], &step) ||
            __builtin_add_overflow(last, step, &last))
            return false;
    *reach = last + 1;
    return true;
}

static bool storage_of(const struct sim_view *view, int64_t *elements)
{
    *elements = 1;
    for (int i = 0; i < view->storage_rank; i++)
        if (__builtin_mul_overflow(*elements, view->storage_dims[i], elements))
            return false;
    return true;
}

/* Whether no two elements lie at one place, as far as the strides tell at once: each step is larger
 * than what the smaller ones reach over. */
static bool is_disjoint(const struct sim_view *view)
{
    for (int i = 0; i < view->rank; i++) {
        int64_t reach = 0;
        for (int k = 0; k < view->rank; k++)
            if (k != i && view->dims[k] > 1 && view->strides[k] <= view->strides[i])
                reach += (view->dims[k] - 1) * view->strides[k];
        if (view->dims[i] > 1 && view->strides[i] <= reach)
            return false;
    }
    return true;
}

static aclError place_tensor(struct sim_call *call, const struct sim_executor *executor, int index,
                             const char *name, struct sim_task *task)
{
    const struct sim_view *view = &executor->views[index];
    struct sim_place place;
    int64_t reach, elements;
    size_t item = sim_type_bytes(view->type);
    bool overwrites = index < task->kernel.kernel->overwritten_count;
    bool writes = overwrites || index >= task->kernel.kernel->input_count;
    if (sim_handle_by_serial(executor->tensors[index]) == NULL)
        return sim_violate(call, ACL_ERROR_RT_INVALID_HANDLE,
                           "%s was destroyed between the stages; it must live until the stream is "
                           "synchronised",
                           name);
    if (!reach_of(view, &reach) || !storage_of(view, &elements) || reach > elements ||
        elements > INT64_MAX / 8)
        return sim_violate(call, ACL_ERROR_RT_PARAM_INVALID,
                           "the view of %s reaches out of its storage", name);
    if (overwrites && !is_disjoint(view))
        return sim_violate(call, ACL_ERROR_RT_PARAM_INVALID,
                           "%s is overwritten, and elements of its view share memory", name);
    aclError status =
        sim_place_device(call, view->address, (size_t)elements * item, name, &place);
    if (status != ACL_SUCCESS)
        return status;
    size_t first = (size_t)view->offset * item;
    sim_task_use(task, (char *)view->address + first, ((size_t)reach * item) - first, writes);
    task->tensors[task->tensor_count++] = executor->tensors[index];
    task->kernel.views[index] = *view;
    task->kernel.data[index] = place.bytes + first;
    task->kernel.data_ends[index] = place.allocation->alias + place.allocation->bytes;
    return ACL_SUCCESS;
}

static aclError place_workspace(struct sim_call *call, const struct sim_executor *executor,
                                void *workspace, uint64_t bytes, struct sim_task *task)
{
    struct sim_place place;
    if (bytes < executor->workspace_bytes)
        return sim_violate(call, ACL_ERROR_RT_PARAM_INVALID,
                           "a workspace of %llu bytes; stage one asked for %llu",
                           (unsigned long long)bytes,
                           (unsigned long long)executor->workspace_bytes);
    if (bytes == 0)
        return workspace == NULL ? ACL_SUCCESS
                                 : sim_violate(call, ACL_ERROR_RT_PARAM_INVALID,
                                               "a workspace of 0 bytes is a null pointer");
    aclError status = sim_place_device(call, workspace, (size_t)bytes, "the workspace", &place);
    if (status != ACL_SUCCESS)
        return status;
    sim_task_use(task, workspace, (size_t)bytes, true);
    task->kernel.workspace = place.bytes;
    task->kernel.workspace_bytes = bytes;
    return ACL_SUCCESS;
}

/* No output may share memory with another tensor or with the workspace. */
static aclError check_overlaps(struct sim_call *call, const struct sim_task *task)
{
    for (int i = 0; i < task->use_count; i++) {
        const struct sim_use *one = &task->uses[i];
        for (int k = i + 1; k < task->use_count; k++) {
            const struct sim_use *other = &task->uses[k];
            if ((one->writes || other->writes) && one->start < other->start + other->bytes &&
                other->start < one->start + one->bytes)
                return sim_violate(call, ACL_ERROR_RT_PARAM_INVALID,
                                   "an output or the workspace shares memory with another tensor");
        }
    }
    return ACL_SUCCESS;
}

static aclError prepare(struct sim_call *call, const struct sim_executor *executor,
                        const struct sim_kernel *kernel, void *workspace, uint64_t workspace_bytes,
                        struct sim_task *task)
{
    aclError status = ACL_SUCCESS;
    task->kernel.kernel = kernel;
    task->kernel.layout = executor->layout;
    task->kernel.mode = executor->mode;
    for (int i = 0; i < kernel->tensor_count && status == ACL_SUCCESS; i++)
        if (executor->tensors[i] != 0)
            status = place_tensor(call, executor, i, kernel->tensor_names[i], task);
    if (status == ACL_SUCCESS)
        status = place_workspace(call, executor, workspace, workspace_bytes, task);
    if (status == ACL_SUCCESS)
        status = check_overlaps(call, task);
    return status;
}

aclError sim_launch(struct sim_call *call, const struct sim_kernel *kernel, void *workspace,
                    uint64_t workspace_bytes, aclOpExecutor *handle, aclrtStream stream)
{
    struct sim_executor *executor;
    struct sim_stream *on;
    aclError status = find_executor(call, handle, kernel, &executor);
    if (status == ACL_SUCCESS)
        status = sim_stream_find(call, stream, &on);
    if (status == ACL_SUCCESS) {
        struct sim_task *task = sim_task_new(SIM_TASK_KERNEL, call);
        status = prepare(call, executor, kernel, workspace, workspace_bytes, task);
        if (status == ACL_SUCCESS)
            status = sim_submit(call, on, task);
        else
            free(task);
    }
    return status;
}
