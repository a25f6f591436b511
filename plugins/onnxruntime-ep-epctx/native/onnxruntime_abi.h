/* The part of onnxruntime's binary interface that bridge.c uses: positions in tables of
 * functions, which onnxruntime only ever extends at their ends, and members of the structs
 * that an EP fills. */

#ifndef EPCTX_ONNXRUNTIME_ABI_H
#define EPCTX_ONNXRUNTIME_ABI_H

/* The first with OrtEpApi::CreateHardwareDevice: onnxruntime 1.24. */
#define API_VERSION 24

typedef void *Status;      /* OrtStatus *; NULL for success */
typedef void *const *Api;  /* const OrtApi *, as a table of functions */

#define CALL(api, position, result, ...) ((result(*)(__VA_ARGS__))(api)[position])

enum { /* OrtErrorCode */
    CODE_FAIL = 1,
    CODE_INVALID_ARGUMENT = 2,
    CODE_NOT_IMPLEMENTED = 9
};

enum { /* OrtApi */
    API_CreateStatus = 0,
    API_GetTensorMutableData = 51,
    API_GetTensorElementType = 60,
    API_GetDimensionsCount = 61,
    API_GetDimensions = 62,
    API_GetTensorTypeAndShape = 65,
    API_KernelContext_GetInput = 90,
    API_KernelContext_GetOutput = 91,
    API_ReleaseStatus = 93,
    API_ReleaseTensorTypeAndShapeInfo = 99,
    API_GetTensorSizeInBytes = 318
};

/* Every struct has as many: onnxruntime reads as many as its `ort_version_supported`
 * says, which is member 0, and empty ones say that there is no implementation. */
#define SLOTS 64

enum { /* OrtEpFactory */
    FACTORY_GetName = 1,
    FACTORY_GetVendor = 2,
    FACTORY_GetSupportedDevices = 3,
    FACTORY_CreateEp = 4,
    FACTORY_ReleaseEp = 5,
    FACTORY_GetVendorId = 6,
    FACTORY_GetVersion = 7,
    FACTORY_ValidateCompiledModelCompatibilityInfo = 8,
    FACTORY_CreateAllocator = 9,
    FACTORY_ReleaseAllocator = 10,
    FACTORY_CreateDataTransfer = 11,
    FACTORY_IsStreamAware = 12
};

enum { /* OrtEp */
    EP_GetName = 1,
    EP_GetCapability = 2,
    EP_Compile = 3,
    EP_ReleaseNodeComputeInfos = 4,
    EP_SetDynamicOptions = 7,
    EP_OnRunStart = 8,
    EP_OnRunEnd = 9,
    EP_GetCompiledModelCompatibilityInfo = 12
};

enum { /* OrtNodeComputeInfo */
    KERNEL_CreateState = 1,
    KERNEL_Compute = 2,
    KERNEL_ReleaseState = 3
};

/* Dimensions of a tensor in a run. */
#define MOST_DIMENSIONS 16

#endif
