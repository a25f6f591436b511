/* A program without Python that runs a model with an input `x` and an output `z`, both
 * floats of [4, 4], by onnxruntime's C API. Prints a line for each step.
 *
 * host ONNXRUNTIME LIBRARY REGISTRATION EP MODEL [CONTEXT_MODEL]
 */

#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CALL(position, result, ...) ((result(*)(__VA_ARGS__))api[position])

enum { /* positions in OrtApi */
    GetErrorMessage = 2,
    CreateEnv = 3,
    CreateSession = 7,
    Run = 9,
    CreateSessionOptions = 10,
    CreateTensorWithDataAsOrtValue = 49,
    GetTensorMutableData = 51,
    CreateCpuMemoryInfo = 69,
    ReleaseEnv = 92,
    ReleaseSession = 95,
    ReleaseValue = 96,
    AddSessionConfigEntry = 130,
    RegisterExecutionProviderLibrary = 301,
    UnregisterExecutionProviderLibrary = 302,
    GetEpDevices = 303,
    SessionOptionsAppendExecutionProvider_V2 = 304,
    EpDevice_EpName = 312
};

#define THREADS 4
#define RUNS 200
#define VALUES 16

static void *const *api;
static void *session;

static void check(const char *step, void *status)
{
    if (!status)
        return;
    printf("%s: %s\n", step, CALL(GetErrorMessage, const char *, void *)(status));
    exit(3);
}

/* Runs the model; stores the result's values. */
static void run(float *result)
{
    const char *inputs[] = {"x"}, *outputs[] = {"z"};
    const int64_t shape[] = {4, 4};
    float values[VALUES], *found;
    void *memory, *given, *made = NULL;

    for (int i = 0; i < VALUES; i++)
        values[i] = (float)i / VALUES;
    check("memory", CALL(CreateCpuMemoryInfo, void *, int, int, void **)(0, 0, &memory));
    check("input", CALL(CreateTensorWithDataAsOrtValue, void *, void *, void *, size_t, const int64_t *, size_t,
                        int, void **)(memory, values, sizeof values, shape, 2, 1, &given));
    check("run", CALL(Run, void *, void *, void *, const char *const *, void *const *, size_t,
                      const char *const *, size_t, void **)(session, NULL, inputs, &given, 1, outputs, 1, &made));
    check("output", CALL(GetTensorMutableData, void *, void *, void **)(made, (void **)&found));
    memcpy(result, found, VALUES * sizeof *found);
    CALL(ReleaseValue, void, void *)(made);
    CALL(ReleaseValue, void, void *)(given);
}

static void *run_often(void *wrong)
{
    float first[VALUES], other[VALUES];

    run(first);
    for (int i = 0; i < RUNS; i++) {
        run(other);
        if (memcmp(first, other, sizeof first))
            *(int *)wrong = 1;
    }
    return NULL;
}

int main(int count, char **arguments)
{
    void *runtime, *env, *options, *const *devices, *chosen = NULL;
    void *const *(*get_base)(void);
    size_t device_count;
    float result[VALUES];
    pthread_t threads[THREADS];
    int wrong[THREADS] = {0};

    setvbuf(stdout, NULL, _IONBF, 0);
    if (count < 6 || !(runtime = dlopen(arguments[1], RTLD_NOW))) {
        printf("usage, or: %s\n", dlerror());
        return 2;
    }
    get_base = (void *const *(*)(void))dlsym(runtime, "OrtGetApiBase");
    api = ((void *const *(*)(uint32_t))get_base()[0])(24);
    check("env", CALL(CreateEnv, void *, int, const char *, void **)(3, "host", &env));
    check("register", CALL(RegisterExecutionProviderLibrary, void *, void *, const char *, const char *)(
                          env, arguments[3], arguments[2]));

    check("devices", CALL(GetEpDevices, void *, void *, void *const **, size_t *)(env, &devices, &device_count));
    for (size_t i = 0; i < device_count && !chosen; i++)
        if (!strcmp(CALL(EpDevice_EpName, const char *, void *)(devices[i]), arguments[4]))
            chosen = devices[i];
    printf("device: %s\n", chosen ? arguments[4] : "none");
    check("options", CALL(CreateSessionOptions, void *, void **)(&options));
    if (chosen)
        check("append", CALL(SessionOptionsAppendExecutionProvider_V2, void *, void *, void *, void *const *,
                             size_t, void *, void *, size_t)(options, env, &chosen, 1, NULL, NULL, 0));
    if (count > 6) {
        const char *entries[][2] = {{"ep.context_enable", "1"},
                                    {"ep.context_embed_mode", "0"},
                                    {"ep.context_file_path", arguments[6]}};
        for (int i = 0; i < 3; i++)
            check("entry", CALL(AddSessionConfigEntry, void *, void *, const char *, const char *)(
                               options, entries[i][0], entries[i][1]));
    }
    check("session", CALL(CreateSession, void *, void *, const char *, void *, void **)(env, arguments[5],
                                                                                       options, &session));

    run(result);
    printf("result: %.6f %.6f %.6f\n", result[0], result[5], result[15]);
    for (int i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, run_often, &wrong[i]);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    printf("threads: %s\n", wrong[0] || wrong[1] || wrong[2] || wrong[3] ? "wrong" : "right");

    CALL(ReleaseSession, void, void *)(session);
    check("unregister", CALL(UnregisterExecutionProviderLibrary, void *, void *, const char *)(env, arguments[3]));
    CALL(ReleaseEnv, void, void *)(env);
    printf("end\n");
    return 0;
}
