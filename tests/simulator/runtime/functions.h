/* Every function that is counted, can be told to fail, and takes part in the rules. */
#ifndef OPFERRY_SIM_FUNCTIONS_H
#define OPFERRY_SIM_FUNCTIONS_H

#define SIM_FUNCTIONS(X) \
    X(aclInit) \
    X(aclFinalize) \
    X(aclrtPeekAtLastError) \
    X(aclrtGetLastError) \
    X(aclrtGetSocName) \
    X(aclrtGetVersion) \
    X(aclsysGetVersionStr) \
    X(aclrtSetOpExecuteTimeOutV2) \
    X(aclrtGetDeviceCount) \
    X(aclrtSetDevice) \
    X(aclrtResetDevice) \
    X(aclrtResetDeviceForce) \
    X(aclrtGetDevice) \
    X(aclrtSynchronizeDevice) \
    X(aclrtSynchronizeDeviceWithTimeout) \
    X(aclrtQueryDeviceStatus) \
    X(aclrtDeviceTaskAbort) \
    X(aclrtCreateContext) \
    X(aclrtDestroyContext) \
    X(aclrtSetCurrentContext) \
    X(aclrtGetCurrentContext) \
    X(aclrtCtxSetSysParamOpt) \
    X(aclrtCtxGetSysParamOpt) \
    X(aclrtMalloc) \
    X(aclrtFree) \
    X(aclrtFreeWithDevSync) \
    X(aclrtMallocHost) \
    X(aclrtFreeHost) \
    X(aclrtMemcpy) \
    X(aclrtMemcpyAsync) \
    X(aclrtMemset) \
    X(aclrtMemsetAsync) \
    X(aclrtGetMemInfo) \
    X(aclrtCreateStream) \
    X(aclrtCreateStreamWithConfig) \
    X(aclrtDestroyStream) \
    X(aclrtDestroyStreamForce) \
    X(aclrtStreamAbort) \
    X(aclrtSynchronizeStream) \
    X(aclrtSynchronizeStreamWithTimeout) \
    X(aclrtStreamQuery) \
    X(aclrtGetStreamAvailableNum) \
    X(aclrtCreateEventExWithFlag) \
    X(aclrtDestroyEvent) \
    X(aclrtRecordEvent) \
    X(aclrtStreamWaitEvent) \
    X(aclrtSynchronizeEvent) \
    X(aclrtSynchronizeEventWithTimeout) \
    X(aclrtQueryEventStatus) \
    X(aclrtEventElapsedTime) \
    X(aclnnInit) \
    X(aclnnFinalize) \
    X(aclCreateTensor) \
    X(aclDestroyTensor) \
    X(aclSetAclOpExecutorRepeatable) \
    X(aclDestroyAclOpExecutor) \
    X(aclnnApplyRotaryPosEmbGradGetWorkspaceSize) \
    X(aclnnApplyRotaryPosEmbGrad) \
    X(aclnnApplyRotaryPosEmbV2GetWorkspaceSize) \
    X(aclnnApplyRotaryPosEmbV2)

#define SIM_FUNCTION_ENUM(name) SIM_##name,
enum sim_function { SIM_FUNCTIONS(SIM_FUNCTION_ENUM) SIM_FUNCTION_COUNT };

#endif
