/* A CUPTI that samples what a test says, built from NVIDIA's own header: what it writes lies where CUPTI writes it.
 *
 * It refuses what CUPTI refuses: calls out of order, and structures of a wrong size. */
#include <cuda.h>
#include <cupti_pcsampling.h>
#include <string.h>

#define CONTEXT ((CUcontext)0x77)
#define CHECK(what, code)                                                                                             \
  if (!(what)) return code
#define CHECKED(type, attached)                                                                                       \
  if (refused(__func__)) return refused(__func__);                                                                    \
  CHECK(p->size == type##Size && p->pPriv == NULL && p->ctx == CONTEXT, CUPTI_ERROR_INVALID_PARAMETER);               \
  CHECK(state >= attached, CUPTI_ERROR_INVALID_OPERATION)

enum { DETACHED, SUBSCRIBED, ENABLED, CONFIGURED, STARTED, STOPPED };
static const char *REASONS[] = {"smsp__pcsamp_warps_issue_stalled_long_scoreboard",
                                "smsp__pcsamp_warps_issue_stalled_long_scoreboard_not_issued",
                                "smsp__pcsamp_warps_issue_stalled_not_selected", "smsp__pcsamp_warps_issue_stalled_gmma",
                                "smsp__pcsamp_warps_issue_stalled_selected",
                                "smsp__pcsamp_sample_count", "smsp__pcsamp_samples_data_dropped"};
/* The last two are no reasons: CUPTI counts them beside those that were asked for. */
enum { STALLS = 5, COUNT = 7, FIRST = 40 };

static struct {
  char name[64];
  uint64_t offset;
  uint32_t reason, samples;
} pcs[10000];
static size_t added, given, kept, piece;
static int state, period, full, empty_reads, finalized, paused;
static uint64_t dropped;
static CUpti_PCSamplingData *buffer;
static char refusing[64];
static int refusal;

/* What a test asks. */
void fake_reset(void) { added = given = kept = piece = 0, state = period = full = empty_reads = finalized = 0, dropped = 0, refusing[0] = 0, refusal = 0; }
void fake_reset_samples(void) { added = given = 0; }
void fake_add(const char *name, uint64_t offset, uint32_t reason, uint32_t samples) {
  strncpy(pcs[added].name, name, 63), pcs[added].offset = offset, pcs[added].reason = reason, pcs[added++].samples = samples;
}
void fake_refuse(const char *name, int code) { strncpy(refusing, name, 63), refusal = code; }
void fake_drop(uint64_t count) { dropped = count; }
void fake_fill(void) { full = 1; }
void fake_keep(size_t instructions) { kept = instructions; }
void fake_decode_by(size_t instructions) { piece = instructions; }
void fake_wait(int reads) { empty_reads = reads; }
int fake_state(void) { return state; }
int fake_period(void) { return period; }
int fake_finalized(void) { return finalized; }

static int refused(const char *name) { return strcmp(name, refusing) ? 0 : refusal; }

CUresult cuCtxGetCurrent(CUcontext *context) { return *context = CONTEXT, 0; }

CUptiResult cuptiGetResultString(CUptiResult result, const char **text) {
  return *text = result == 8 ? "CUPTI_ERROR_OUT_OF_MEMORY" : "CUPTI_ERROR_INVALID_OPERATION", 0;
}
CUptiResult cuptiSubscribe(void **subscriber, void *callback, void *data) {
  if (refused(__func__)) return refused(__func__);
  CHECK(callback && state == DETACHED, 39);
  return *subscriber = (void *)5, state = SUBSCRIBED, 0;
}
CUptiResult cuptiUnsubscribe(void *subscriber) { return subscriber == (void *)5 ? (state = DETACHED, 0) : 1; }
CUptiResult cuptiFinalize(void) { return finalized++, 0; }

CUptiResult cuptiPCSamplingEnable(CUpti_PCSamplingEnableParams *p) {
  CHECKED(CUpti_PCSamplingEnableParams, SUBSCRIBED);
  return state = ENABLED, 0;
}
CUptiResult cuptiPCSamplingDisable(CUpti_PCSamplingDisableParams *p) {
  CHECKED(CUpti_PCSamplingDisableParams, ENABLED);
  return state = SUBSCRIBED, 0;
}
CUptiResult cuptiPCSamplingGetNumStallReasons(CUpti_PCSamplingGetNumStallReasonsParams *p) {
  CHECKED(CUpti_PCSamplingGetNumStallReasonsParams, ENABLED);
  return *p->numStallReasons = COUNT, 0;
}
CUptiResult cuptiPCSamplingGetStallReasons(CUpti_PCSamplingGetStallReasonsParams *p) {
  CHECKED(CUpti_PCSamplingGetStallReasonsParams, ENABLED);
  CHECK(p->numStallReasons == COUNT, CUPTI_ERROR_INVALID_PARAMETER);
  for (uint32_t i = 0; i < COUNT; i++)
    p->stallReasonIndex[i] = FIRST + i, strncpy(p->stallReasons[i], REASONS[i], CUPTI_STALL_REASON_STRING_SIZE);
  return 0;
}
CUptiResult cuptiPCSamplingSetConfigurationAttribute(CUpti_PCSamplingConfigurationInfoParams *p) {
  CHECKED(CUpti_PCSamplingConfigurationInfoParams, ENABLED);
  for (size_t i = 0; i < p->numAttributes; i++) {
    CUpti_PCSamplingConfigurationInfo *one = p->pPCSamplingConfigurationInfo + i;
    switch (one->attributeType) {
    case CUPTI_PC_SAMPLING_CONFIGURATION_ATTR_TYPE_SAMPLING_PERIOD:
      period = one->attributeData.samplingPeriodData.samplingPeriod;
      break;
    case CUPTI_PC_SAMPLING_CONFIGURATION_ATTR_TYPE_STALL_REASON:
      CHECK(one->attributeData.stallReasonData.stallReasonCount == STALLS, CUPTI_ERROR_INVALID_PARAMETER);
      CHECK(one->attributeData.stallReasonData.pStallReasonIndex[STALLS - 1] == FIRST + STALLS - 1, 1);
      break;
    case CUPTI_PC_SAMPLING_CONFIGURATION_ATTR_TYPE_HARDWARE_BUFFER_SIZE:
      CHECK(one->attributeData.hardwareBufferSizeData.hardwareBufferSize >= 1 << 20, CUPTI_ERROR_INVALID_PARAMETER);
      break;
    case CUPTI_PC_SAMPLING_CONFIGURATION_ATTR_TYPE_COLLECTION_MODE:
      CHECK(one->attributeData.collectionModeData.collectionMode == CUPTI_PC_SAMPLING_COLLECTION_MODE_CONTINUOUS, 1);
      break;
    case CUPTI_PC_SAMPLING_CONFIGURATION_ATTR_TYPE_ENABLE_START_STOP_CONTROL:
      CHECK(one->attributeData.enableStartStopControlData.enableStartStopControl == 1, CUPTI_ERROR_INVALID_PARAMETER);
      break;
    case CUPTI_PC_SAMPLING_CONFIGURATION_ATTR_TYPE_SAMPLING_DATA_BUFFER:
      buffer = one->attributeData.samplingDataBufferData.samplingDataBuffer;
      CHECK(buffer->size == sizeof(CUpti_PCSamplingData), CUPTI_ERROR_INVALID_PARAMETER);
      break;
    default:
      return CUPTI_ERROR_INVALID_PARAMETER;
    }
  }
  CHECK(period >= 5 && period <= 31 && buffer, CUPTI_ERROR_INVALID_PARAMETER);
  return state = CONFIGURED, 0;
}
CUptiResult cuptiPCSamplingStart(CUpti_PCSamplingStartParams *p) {
  CHECKED(CUpti_PCSamplingStartParams, CONFIGURED);
  return state = STARTED, 0;
}
CUptiResult cuptiPCSamplingStop(CUpti_PCSamplingStopParams *p) {
  CHECKED(CUpti_PCSamplingStopParams, STARTED);
  return state = STOPPED, 0;
}
CUptiResult cuptiPCSamplingGetData(CUpti_PCSamplingGetDataParams *p) {
  CHECKED(CUpti_PCSamplingGetDataParams, STOPPED);
  CHECK(p->pcSamplingData == buffer, CUPTI_ERROR_INVALID_PARAMETER);
  size_t number = 0, most = piece ? piece : buffer->collectNumPcs;
  if (full) return buffer->totalNumPcs = 0, buffer->hardwareBufferFull = 1, 8;
  if (piece && given && given < added && !paused) return paused = 1, buffer->remainingNumPcs = 0, 0; /* leaves the rest as it was */
  paused = 0;
  if (empty_reads-- <= 0)
    for (; number < most && given < added; number++, given++) {
      CUpti_PCSamplingPCData *pc = buffer->pPcData + number;
      pc->cubinCrc = 7, pc->pcOffset = pcs[given].offset, pc->functionName = pcs[given].name;
      pc->stallReasonCount = 4; /* one that counts, one in which nothing was sampled, and what is no reason */
      pc->stallReason[0].pcSamplingStallReasonIndex = FIRST + pcs[given].reason, pc->stallReason[0].samples = pcs[given].samples;
      pc->stallReason[1].pcSamplingStallReasonIndex = FIRST + 4, pc->stallReason[1].samples = 0;
      for (int i = STALLS; i < COUNT; i++)
        pc->stallReason[i - 3].pcSamplingStallReasonIndex = FIRST + i, pc->stallReason[i - 3].samples = pcs[given].samples;
    }
  buffer->totalNumPcs = number, buffer->remainingNumPcs = added - given + kept;
  buffer->droppedSamples = dropped, dropped = 0, buffer->hardwareBufferFull = 0;
  if (empty_reads >= 0 || piece) buffer->remainingNumPcs = 0; /* what is not decoded yet is not known of */
  return 0;
}
