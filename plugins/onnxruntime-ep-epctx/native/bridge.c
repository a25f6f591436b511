/* EPs that are written in Python, as plugin EPs of an onnxruntime that knows nothing of
 * Python.
 *
 * This file owns every struct that onnxruntime holds, and each call of onnxruntime enters
 * Python through one table of functions, which the package's Python half fills (ctypes).
 * It needs no header of Python: an interpreter is the one of the process, or is loaded.
 *
 * Nothing that onnxruntime may still call is freed: factories live as long as the process,
 * an EP and a kernel until onnxruntime releases them. After Python's end no call enters
 * it: each fails with a status.
 */

#define _GNU_SOURCE
#include "onnxruntime_abi.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef uintptr_t Word; /* an argument: a number or a pointer */

/* Stores its status behind the last argument. Not its result: where Python is interrupted
 * on the way in, ctypes returns what happens to be there. */
typedef void (*Hook)(int64_t key, Word, Word, Word, Word, Word, Word api, Word status);

/* The order of the table in library.py. */
enum {
    MAKE_FACTORIES,
    LIST_DEVICES,
    MAKE_EP,
    RELEASE,
    GET_CAPABILITY,
    COMPILE,
    RUN,
    SET_DYNAMIC_OPTIONS,
    START_RUN,
    END_RUN,
    DESCRIBE_COMPATIBILITY,
    VALIDATE_COMPATIBILITY,
    HOOKS
};

/* A status that no hook has replaced. */
#define UNANSWERED ((Status)(uintptr_t)1)

static Hook hooks[HOOKS];
static atomic_bool was_attached;
static atomic_bool is_attached;
static atomic_int calls_inside;

/* What onnxruntime holds: `slots` are the members of its own struct. */
typedef struct {
    void *slots[SLOTS];
    int64_t key; /* of the Python object */
    Api api;     /* of the onnxruntime that holds this: a process may have several */
    char *name;
    char *vendor;
    char *version;
    bool has_start_hook;
    atomic_bool has_failed; /* before onnxruntime listened: its runs say so */
} Object;

static Status make_status(Api api, int code, const char *message)
{
    return CALL(api, API_CreateStatus, Status, int, const char *)(code, message);
}

static Status enter(int hook, const Object *object, Word a, Word b, Word c, Word d, Word e)
{
    Status status = UNANSWERED;

    /* Counted before the flag is read, so that `epctx_detach` waits for this call. */
    atomic_fetch_add(&calls_inside, 1);
    if (atomic_load(&is_attached))
        hooks[hook](object->key, a, b, c, d, e, (Word)object->api, (Word)&status);
    else
        status = make_status(object->api, CODE_FAIL,
                             "epctx: Python has ended, so its EPs cannot be used any more.");
    atomic_fetch_sub(&calls_inside, 1);
    if (status == UNANSWERED)
        status = make_status(object->api, CODE_FAIL, "epctx: Python was interrupted on the way into an EP.");
    return status;
}

static void release(Object *object)
{
    Status status = enter(RELEASE, object, 0, 0, 0, 0, 0);

    /* There is nobody to tell. */
    if (status)
        CALL(object->api, API_ReleaseStatus, void, Status)(status);
}

static Object *make_object(size_t size, int64_t key, Api api)
{
    Object *object = calloc(1, size);
    uint32_t version = API_VERSION;

    if (object) {
        memcpy(object->slots, &version, sizeof version);
        object->key = key;
        object->api = api;
    }
    return object;
}

/* -- runs ------------------------------------------------------------------------- */

/* A tensor as runs.py reads it. */
typedef struct {
    void *data;
    int64_t type; /* ONNX's element type; 0 for an optional input that is left out */
    int64_t rank;
    int64_t lengths[MOST_DIMENSIONS];
} Tensor;

/* One partition. Where shapes are proven, onnxruntime is not asked for those of inputs,
 * and its outputs are made before Python is entered. */
typedef struct {
    Object object;
    bool is_static; /* whether shapes are proven; only then is there what follows the counts */
    size_t input_count;
    size_t output_count;
    size_t *input_bytes; /* of each input */
    size_t *ranks;       /* of each output */
    int64_t *lengths;    /* of all outputs, one after the other */
} Kernel;

#define FEW 16 /* tensors that a run has on its stack */

static Status find_input(const Kernel *kernel, void *context, size_t index, void **value, void **data)
{
    Api api = kernel->object.api;
    Status status = CALL(api, API_KernelContext_GetInput, Status, void *, size_t, void **)(context, index, value);

    *data = NULL;
    if (!status && *value)
        status = CALL(api, API_GetTensorMutableData, Status, void *, void **)(*value, data);
    return status;
}

/* What was proven is not asked for again, but no memory is read beyond its end. */
static Status find_static_input(const Kernel *kernel, void *context, size_t index, void **data)
{
    Api api = kernel->object.api;
    void *value = NULL;
    size_t bytes = 0;
    Status status = find_input(kernel, context, index, &value, data);

    if (!status && value)
        status = CALL(api, API_GetTensorSizeInBytes, Status, void *, size_t *)(value, &bytes);
    if (!status && bytes != kernel->input_bytes[index])
        status = make_status(api, CODE_INVALID_ARGUMENT, "epctx: an input has another size than the model declares.");
    return status;
}

static Status read_tensor(const Kernel *kernel, void *context, size_t index, Tensor *tensor)
{
    Api api = kernel->object.api;
    void *value = NULL, *info = NULL;
    int type = 0;
    size_t rank = 0;
    Status status = find_input(kernel, context, index, &value, &tensor->data);

    tensor->type = 0;
    if (status || !value)
        return status;
    status = CALL(api, API_GetTensorTypeAndShape, Status, void *, void **)(value, &info);
    if (status)
        return status;
    status = CALL(api, API_GetTensorElementType, Status, void *, int *)(info, &type);
    if (!status)
        status = CALL(api, API_GetDimensionsCount, Status, void *, size_t *)(info, &rank);
    if (!status && rank > MOST_DIMENSIONS)
        status = make_status(api, CODE_NOT_IMPLEMENTED, "epctx: a tensor has more than 16 dimensions.");
    if (!status)
        status = CALL(api, API_GetDimensions, Status, void *, int64_t *, size_t)(info, tensor->lengths, rank);
    CALL(api, API_ReleaseTensorTypeAndShapeInfo, void, void *)(info);
    tensor->type = type;
    tensor->rank = (int64_t)rank;
    return status;
}

static Status make_outputs(const Kernel *kernel, void *context, void **outputs)
{
    Api api = kernel->object.api;
    const int64_t *lengths = kernel->lengths;

    for (size_t i = 0; i < kernel->output_count; i++) {
        void *value = NULL;
        Status status = CALL(api, API_KernelContext_GetOutput, Status, void *, size_t, const int64_t *,
                             size_t, void **)(context, i, lengths, kernel->ranks[i], &value);
        if (!status)
            status = CALL(api, API_GetTensorMutableData, Status, void *, void **)(value, &outputs[i]);
        if (status)
            return status;
        lengths += kernel->ranks[i];
    }
    return NULL;
}

static Status kernel_make_state(Kernel *kernel, void *context, void **state)
{
    (void)kernel, (void)context;
    *state = NULL;
    return NULL;
}

static void kernel_release_state(Kernel *kernel, void *state)
{
    (void)kernel, (void)state;
}

static Status kernel_run(Kernel *kernel, void *state, void *context)
{
    Tensor few[FEW];
    size_t tensors = kernel->is_static ? 0 : kernel->input_count;
    size_t places = kernel->is_static ? kernel->input_count + kernel->output_count : 0;
    size_t size = tensors * sizeof *few + places * sizeof(void *);
    void *memory = size > sizeof few ? malloc(size) : few;
    void **addresses = memory;
    Status status = NULL;

    (void)state;
    if (!memory)
        return make_status(kernel->object.api, CODE_FAIL, "epctx: out of memory.");
    for (size_t i = 0; !status && i < kernel->input_count; i++)
        status = kernel->is_static ? find_static_input(kernel, context, i, &addresses[i])
                                   : read_tensor(kernel, context, i, (Tensor *)memory + i);
    if (!status && kernel->is_static)
        status = make_outputs(kernel, context, addresses + kernel->input_count);
    if (!status)
        status = enter(RUN, &kernel->object, (Word)context, (Word)memory, 0, 0, 0);
    if (memory != few)
        free(memory);
    return status;
}

/* -- an EP of one session ---------------------------------------------------------- */

static const char *get_name(const Object *object)
{
    return object->name;
}

static Status ep_get_capability(Object *ep, const void *graph, void *info)
{
    return enter(GET_CAPABILITY, ep, (Word)graph, (Word)info, 0, 0, 0);
}

static Status ep_compile(Object *ep, const void **graphs, const void **nodes, size_t count, void **kernels,
                         void **context_nodes)
{
    for (size_t i = 0; i < count; i++) {
        kernels[i] = NULL;
        if (context_nodes)
            context_nodes[i] = NULL;
    }
    return enter(COMPILE, ep, (Word)graphs, (Word)nodes, count, (Word)kernels, (Word)context_nodes);
}

static void free_kernel(Kernel *kernel)
{
    free(kernel->input_bytes);
    free(kernel->ranks);
    free(kernel->lengths);
    free(kernel);
}

static void ep_release_kernels(Object *ep, Kernel **kernels, size_t count)
{
    (void)ep;
    for (size_t i = 0; i < count; i++) {
        if (!kernels[i])
            continue;
        release(&kernels[i]->object);
        free_kernel(kernels[i]);
    }
}

static Status ep_set_dynamic_options(Object *ep, const char *const *keys, const char *const *values,
                                     size_t count)
{
    return enter(SET_DYNAMIC_OPTIONS, ep, (Word)keys, (Word)values, count, 0, 0);
}

static Status ep_start_run(Object *ep, const void *options)
{
    if (!ep->has_start_hook && !atomic_load(&ep->has_failed))
        return NULL;
    return enter(START_RUN, ep, (Word)options, 0, 0, 0, 0);
}

static Status ep_end_run(Object *ep, const void *options, bool waits)
{
    return enter(END_RUN, ep, (Word)options, waits, 0, 0, 0);
}

static const char *ep_describe_compatibility(Object *ep, const void *graph)
{
    const char *text = "";
    Status status = enter(DESCRIBE_COMPATIBILITY, ep, (Word)graph, (Word)&text, 0, 0, 0);

    if (status)
        CALL(ep->api, API_ReleaseStatus, void, Status)(status);
    return text;
}

/* -- factories --------------------------------------------------------------------- */

static const char *get_vendor(const Object *object)
{
    return object->vendor;
}

static const char *get_version(const Object *object)
{
    return object->version;
}

static uint32_t get_vendor_id(const Object *object)
{
    (void)object;
    return 0;
}

static Status factory_list_devices(Object *factory, const void *const *hardware, size_t hardware_count,
                                   void **devices, size_t most, size_t *count)
{
    *count = 0;
    return enter(LIST_DEVICES, factory, (Word)hardware, hardware_count, (Word)devices, most, (Word)count);
}

static Status factory_make_ep(Object *factory, const void *const *devices, const void *const *metadata,
                              size_t count, const void *options, const void *logger, void **ep)
{
    (void)devices, (void)metadata, (void)count;
    *ep = NULL;
    return enter(MAKE_EP, factory, (Word)options, (Word)logger, (Word)ep, 0, 0);
}

static void factory_release_ep(Object *factory, Object *ep)
{
    (void)factory;
    release(ep);
    free(ep->name);
    free(ep);
}

static Status factory_validate_compatibility(Object *factory, const void *const *devices, size_t count,
                                             const char *text, int *verdict)
{
    (void)devices, (void)count;
    *verdict = 0;
    return enter(VALIDATE_COMPATIBILITY, factory, (Word)text, (Word)verdict, 0, 0, 0);
}

/* An EP runs on the CPU's memory: onnxruntime asks for these, and gets none. */
static Status factory_make_allocator(Object *factory, const void *memory, const void *options, void **made)
{
    (void)factory, (void)memory, (void)options;
    *made = NULL;
    return NULL;
}

static void factory_release_allocator(Object *factory, void *allocator)
{
    (void)factory, (void)allocator;
}

static Status factory_make_data_transfer(Object *factory, void **made)
{
    (void)factory;
    *made = NULL;
    return NULL;
}

static bool factory_has_streams(const Object *factory)
{
    (void)factory;
    return false;
}

/* -- what the Python half calls ----------------------------------------------------- */

#define EXPORT __attribute__((visibility("default")))

EXPORT void epctx_attach(const Hook *table)
{
    memcpy(hooks, table, sizeof hooks);
    atomic_store(&was_attached, true);
    atomic_store(&is_attached, true);
}

/* Lets no further call in, and waits for those that are inside. */
EXPORT void epctx_detach(int milliseconds)
{
    atomic_store(&is_attached, false);
    while (atomic_load(&calls_inside) && milliseconds-- > 0)
        usleep(1000);
}

EXPORT Object *epctx_make_factory(int64_t key, Api api, const char *name, const char *vendor,
                                  const char *version)
{
    Object *factory = make_object(sizeof *factory, key, api);

    if (!factory)
        return NULL;
    factory->name = strdup(name);
    factory->vendor = strdup(vendor);
    factory->version = strdup(version);
    factory->slots[FACTORY_GetName] = get_name;
    factory->slots[FACTORY_GetVendor] = get_vendor;
    factory->slots[FACTORY_GetSupportedDevices] = factory_list_devices;
    factory->slots[FACTORY_CreateEp] = factory_make_ep;
    factory->slots[FACTORY_ReleaseEp] = factory_release_ep;
    factory->slots[FACTORY_GetVendorId] = get_vendor_id;
    factory->slots[FACTORY_GetVersion] = get_version;
    factory->slots[FACTORY_ValidateCompiledModelCompatibilityInfo] = factory_validate_compatibility;
    factory->slots[FACTORY_CreateAllocator] = factory_make_allocator;
    factory->slots[FACTORY_ReleaseAllocator] = factory_release_allocator;
    factory->slots[FACTORY_CreateDataTransfer] = factory_make_data_transfer;
    factory->slots[FACTORY_IsStreamAware] = factory_has_streams;
    return factory;
}

/* A slot of a hook that the EP lacks stays empty: onnxruntime then does not call. That
 * of a run's start is there for failures, and enters Python for those and a hook alone. */
EXPORT Object *epctx_make_ep(int64_t key, Api api, const char *name, int has_dynamic_options,
                             int has_start_run, int has_end_run)
{
    Object *ep = make_object(sizeof *ep, key, api);

    if (!ep)
        return NULL;
    ep->name = strdup(name);
    ep->slots[EP_GetName] = get_name;
    ep->slots[EP_GetCapability] = ep_get_capability;
    ep->slots[EP_Compile] = ep_compile;
    ep->slots[EP_ReleaseNodeComputeInfos] = ep_release_kernels;
    ep->slots[EP_GetCompiledModelCompatibilityInfo] = ep_describe_compatibility;
    if (has_dynamic_options)
        ep->slots[EP_SetDynamicOptions] = ep_set_dynamic_options;
    ep->slots[EP_OnRunStart] = ep_start_run;
    ep->has_start_hook = has_start_run;
    if (has_end_run)
        ep->slots[EP_OnRunEnd] = ep_end_run;
    return ep;
}

/* The EP failed in a call whose failure onnxruntime passes over. */
EXPORT void epctx_fail_runs(Object *ep)
{
    atomic_store(&ep->has_failed, true);
}

static void *copy(const void *data, size_t size)
{
    void *made = malloc(size ? size : 1);

    return made ? memcpy(made, data, size) : NULL;
}

/* `input_bytes`, `ranks` and `lengths` are empty where shapes are not proven. */
EXPORT Kernel *epctx_make_kernel(int64_t key, Api api, int is_static, size_t input_count,
                                 const size_t *input_bytes, size_t output_count, const size_t *ranks,
                                 const int64_t *lengths)
{
    Kernel *kernel = (Kernel *)make_object(sizeof *kernel, key, api);
    size_t length_count = 0;

    if (!kernel)
        return NULL;
    kernel->is_static = is_static;
    kernel->input_count = input_count;
    kernel->output_count = output_count;
    if (is_static) {
        for (size_t i = 0; i < output_count; i++)
            length_count += ranks[i];
        kernel->input_bytes = copy(input_bytes, input_count * sizeof *input_bytes);
        kernel->ranks = copy(ranks, output_count * sizeof *ranks);
        kernel->lengths = copy(lengths, length_count * sizeof *lengths);
    }
    if (is_static && !(kernel->input_bytes && kernel->ranks && kernel->lengths)) {
        free_kernel(kernel);
        return NULL;
    }
    kernel->object.slots[KERNEL_CreateState] = kernel_make_state;
    kernel->object.slots[KERNEL_Compute] = kernel_run;
    kernel->object.slots[KERNEL_ReleaseState] = kernel_release_state;
    return kernel;
}

/* -- an interpreter ----------------------------------------------------------------- */

static void *find(void *library, const char *name)
{
    return dlsym(library ? library : RTLD_DEFAULT, name);
}

typedef struct {
    int type;
    const char *function, *message;
    int code;
} PyStatus;

/* Starts an interpreter without signal handlers; returns what is wrong, or NULL. Py_InitializeEx would end the
 * process, such as for a wrong PYTHONHOME. */
static const char *begin_python(void *library)
{
    /* A PyConfig, whose size depends on the version and is below 1 KiB; it begins with a version, isolated,
     * use_environment, dev_mode and install_signal_handlers. */
    static _Alignas(16) int config[1 << 12];
    static const char *problem;
    void (*fill)(int *) = (void (*)(int *))find(library, "PyConfig_InitPythonConfig");
    PyStatus (*start)(int *) = (PyStatus(*)(int *))find(library, "Py_InitializeFromConfig");
    int (*is_error)(PyStatus) = (int (*)(PyStatus))find(library, "PyStatus_Exception");
    PyStatus status;

    /* What a failed start leaves cannot be started again. */
    if (problem)
        return problem;
    if (fill && start && is_error)
        fill(config);
    /* As in 3.8 to 3.13. */
    if (config[1] || config[2] != 1 || config[3] != -1 || config[4] != 1)
        return problem = "EPCTX_LIBPYTHON names a Python of an unknown version.";
    config[4] = 0;
    status = start(config);
    if (is_error(status))
        problem = "its Python does not start; standard error has the reason. Check PYTHONHOME and PYTHONPATH, and "
                  "that EPCTX_LIBPYTHON names the libpython3 of a whole installation.";
    return problem;
}

/* Imports the Python half, in the interpreter of the process or in one of our own;
 * returns what is wrong, or NULL. */
static const char *start_python(void)
{
    void *library = NULL;
    Dl_info self;
    char code[2048];
    int lock = 0, failed;
    int (*is_initialized)(void) = (int (*)(void))find(NULL, "Py_IsInitialized");

    if (!is_initialized) {
        /* Not in a program with more rights than its user. */
        const char *path = secure_getenv("EPCTX_LIBPYTHON");
        if (!path)
            return "the host has no Python. Set EPCTX_LIBPYTHON to the libpython3 of the environment in which "
                   "epctx is installed, such as /usr/lib/x86_64-linux-gnu/libpython3.11.so.1.0.";
        /* Global: extension modules need its symbols. */
        library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
        if (!library)
            return dlerror();
        is_initialized = (int (*)(void))find(library, "Py_IsInitialized");
        if (!is_initialized)
            return "EPCTX_LIBPYTHON names a library that is no libpython.";
    }

    if (!dladdr((void *)start_python, &self) || strlen(self.dli_fname) > sizeof code / 2 ||
        strpbrk(self.dli_fname, "'\"\\"))
        return "the path of its library is too long, or has a quote.";
    /* In names of its own: PyRun_SimpleString runs in the host's __main__. */
    snprintf(code, sizeof code,
             "exec(r\"\"\"\n"
             "import os, site, sys\n"
             "here = os.path.dirname(os.path.dirname(r'''%s'''))\n"
             "for folder in (here, *filter(None, os.environ.get('EPCTX_SITE', '').split(os.pathsep))):\n"
             "    if folder not in sys.path:\n"
             "        site.addsitedir(folder)\n"
             "from onnxruntime_ep_epctx.library import attach\n"
             "attach()\n"
             "\"\"\", {})\n",
             self.dli_fname);
    bool is_ours = !is_initialized();
    const char *problem = is_ours ? begin_python(library) : NULL;
    if (problem)
        return problem;
    if (!is_ours)
        lock = ((int (*)(void))find(library, "PyGILState_Ensure"))();
    failed = ((int (*)(const char *))find(library, "PyRun_SimpleString"))(code);
    /* The interpreter goes on for as long as the process: other threads may enter it. */
    if (is_ours)
        ((void *(*)(void))find(library, "PyEval_SaveThread"))();
    else
        ((void (*)(int))find(library, "PyGILState_Release"))(lock);
    return failed || !atomic_load(&is_attached)
               ? "its Python half cannot be imported; standard error has the reason. Install "
                 "onnxruntime-ep-epctx in the environment of that Python, or set EPCTX_SITE to its site-packages."
               : NULL;
}

/* -- what onnxruntime calls ----------------------------------------------------------- */

typedef struct {
    Api (*get_api)(uint32_t version);
    const char *(*get_version)(void);
} ApiBase;

EXPORT Status CreateEpFactories(const char *registration, const ApiBase *base, const void *logger, void **factories,
                                size_t most, size_t *count)
{
    Object nobody = {.api = base->get_api(API_VERSION)};
    const char *problem;
    char message[1024];

    (void)logger;
    *count = 0;
    if (!nobody.api) {
        snprintf(message, sizeof message, "epctx needs onnxruntime 1.%d or newer, and this is %s.", API_VERSION,
                 base->get_version());
        return make_status(base->get_api(1), CODE_FAIL, message);
    }
    if (atomic_load(&was_attached) && !atomic_load(&is_attached))
        return make_status(nobody.api, CODE_FAIL, "epctx: Python has ended, so no EP of it can be registered.");
    if (!atomic_load(&was_attached) && (problem = start_python())) {
        snprintf(message, sizeof message, "epctx: %s", problem);
        return make_status(nobody.api, CODE_FAIL, message);
    }
    return enter(MAKE_FACTORIES, &nobody, (Word)registration, (Word)factories, most, (Word)count, 0);
}

/* A session may outlive its registration. */
EXPORT Status ReleaseEpFactory(void *factory)
{
    (void)factory;
    return NULL;
}
