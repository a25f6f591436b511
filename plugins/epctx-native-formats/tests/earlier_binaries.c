/* Library with QNN's System API whose descriptions have the version that the binary's
   first byte says, laid out by a C compiler as QnnSystemContext.h declares them. */
#include <stddef.h>
#include <stdint.h>

typedef struct { uint32_t major, minor, patch; } Version;
typedef struct {
  uint32_t defined, encoding;
  union {
    struct { float scale; int32_t offset; } whole;
    struct { uint32_t bits; int32_t axis; uint32_t count; float* scales; int32_t* offsets; } bits_axis;
  } value;
} Quantization;
typedef struct {
  uint32_t id;
  const char* name;
  uint32_t type, format, data_type;
  Quantization quantization;
  uint32_t rank;
  uint32_t* lengths;
  uint32_t memory;
  struct { void* data; uint32_t size; } buffer;
} TensorV1;
typedef struct {
  TensorV1 first;
  uint8_t* dynamic;
  struct { uint32_t format, elements, dimensions; } sparse;
  uint8_t produced;
} TensorV2;
typedef struct { uint32_t version; union { TensorV1 v1; TensorV2 v2; } body; } Tensor;
typedef struct {
  const char* name;
  uint32_t input_count;
  Tensor* inputs;
  uint32_t output_count;
  Tensor* outputs;
} GraphV1;
typedef struct {
  GraphV1 first;
  uint32_t updatable_count;
  Tensor* updatable;
  uint32_t blob_size;
  void* blob;
  uint32_t first_operator, last_operator;
} GraphV3;
typedef struct { uint32_t version; union { GraphV1 v1; GraphV3 v3; } body; } Graph;

#define IDENTITY \
  uint32_t backend; const char* build; Version core_api, backend_api; const char* soc_version
#define CONTENT \
  uint32_t tensor_count; Tensor* tensors; uint32_t graph_count; Graph* graphs
#define EARLIER \
  IDENTITY; Version hardware_version, blob_version; uint32_t hardware_size; \
  void* hardware; uint64_t blob_size; CONTENT
typedef struct { EARLIER; } BinaryV1;
typedef struct { EARLIER; void* platform; } BinaryV2;
typedef struct {
  IDENTITY; Version blob_version; uint64_t blob_size; CONTENT; void* platform;
  uint32_t metadata_size; void* metadata; uint32_t soc_model;
} BinaryV3;
typedef struct {
  uint32_t version;
  union { BinaryV1 v1; BinaryV2 v2; BinaryV3 v3; } body;
} Binary;

static uint32_t lengths[] = {2, 3};
static Tensor inputs[2], outputs[1];
static Graph graphs[2];
static Binary binary;

static void fill_tensor(Tensor* tensor, const char* name, uint32_t version) {
  tensor->version = version;
  tensor->body.v1.name = name;
  tensor->body.v1.data_type = 0x0232;
  tensor->body.v1.rank = 2;
  tensor->body.v1.lengths = lengths;
}

#define FILL(it) \
  (it).backend = 6; (it).build = "v2.10.0"; (it).core_api.major = 2; \
  (it).soc_version = "sm8550"; (it).blob_version.minor = 3; (it).blob_size = 99; \
  (it).graph_count = 2; (it).graphs = graphs

static uint64_t create(void** handle) {
  *handle = &binary;
  return 0;
}

static uint64_t get_metadata(void* handle, const uint8_t* content, uint64_t size,
                             const Binary** found) {
  (void)handle, (void)size;
  fill_tensor(&inputs[0], "x", 1);
  fill_tensor(&inputs[1], "y", 2);
  fill_tensor(&outputs[0], "z", 2);
  for (int number = 0; number < 2; number++) {
    Graph* graph = &graphs[number];
    graph->version = number ? 3 : 1;
    graph->body.v1.name = number ? "decode" : "prefill";
    graph->body.v1.input_count = 2;
    graph->body.v1.inputs = inputs;
    graph->body.v1.output_count = 1;
    graph->body.v1.outputs = outputs;
  }
  binary.version = content[0];
  switch (content[0]) {
    case 1: FILL(binary.body.v1); break;
    case 2: FILL(binary.body.v2); break;
    default: FILL(binary.body.v3); binary.body.v3.soc_model = 43;
  }
  *found = &binary;
  return 0;
}

typedef struct {
  uint32_t backend;
  const char* provider;
  Version version;
  void *create, *get_binary_info, *get_metadata;
} Interface;

uint64_t QnnSystemInterface_getProviders(const Interface*** listed, uint32_t* count) {
  static Interface interface;
  static const Interface* all[] = {&interface};
  interface.version.major = 1;
  interface.create = (void*)create;
  interface.get_metadata = (void*)get_metadata;
  *listed = all;
  *count = 1;
  return 0;
}
