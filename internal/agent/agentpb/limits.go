package agentpb

// Limits of messages, in bytes; those of an artifact are archive.Limits. An agent is only as trustworthy as the owner of its pod, so the controller accepts no more than an honest
// agent sends.
const (
	// MaxMessageSize is the largest request. A request contains all configuration of an operation.
	MaxMessageSize = 16 << 20
	// MaxChunkSize is the largest chunk of PushSource, PushPlan and GetPlan.
	MaxChunkSize = 1 << 20
	// MaxInfoSize is the largest answer of GetInfo.
	MaxInfoSize = 256 << 10
	// MaxOperationSize is the largest Operation without outputs.
	MaxOperationSize = 32 << 10
	// MaxResultSize is the largest answer of GetOperation, the only one with outputs.
	MaxResultSize = 5 << 20
	// MaxEmptySize is the largest answer without content.
	MaxEmptySize = 1 << 10
)

// Limits of fields: how many a message may have, including those of all nested messages.
const (
	// MaxRequestFields is for requests.
	MaxRequestFields = 100_000
	// MaxInfoFields is for the answer of GetInfo. It has at most 51 operations.
	MaxInfoFields = 8_000
	// MaxOperationFields is for an Operation without outputs.
	MaxOperationFields = 500
	// MaxResultFields is for the answer of GetOperation: an output has up to 6, and a change 3 and its paths.
	MaxResultFields = MaxOperationFields + 6*MaxOutputs + MaxChanges*(3+2*MaxChangePaths)
	// MaxEmptyFields is for answers without content.
	MaxEmptyFields = 10
)

// Limits of the outputs of an Operation. The Secret that holds the outputs has room for fewer.
const (
	// MaxOutputs is the maximum number of outputs.
	MaxOutputs = 10_000
	// MaxOutputsSize is the maximum size of their names and values together, in bytes.
	MaxOutputsSize = 4 << 20
)

// Limits of the other fields of an Operation, in bytes and in numbers.
const (
	// MaxText is for messages to people, and MaxBriefText for those in the answer of GetInfo.
	MaxText      = 4 << 10
	MaxBriefText = 1 << 10
	// MaxPermalink is for the address of an update in Pulumi Cloud.
	MaxPermalink = 2 << 10
	// MaxName is for the name of a project, of a runtime, of a user, of a host, of a version.
	MaxName = 256
	// MaxWarnings is the maximum number of warnings, each of at most MaxWarning bytes.
	MaxWarnings = 10
	MaxWarning  = 1 << 10
	// MaxChangeKinds is how many kinds of changes are counted, and MaxChangeKind the maximum length of the name of a kind.
	MaxChangeKinds = 32
	MaxChangeKind  = 64
)

// Limits of the changes of an Operation, which go into the status of an Update.
const (
	// MaxChanges is the maximum number of changes, and MaxChangesSize the maximum size of all their texts together, in bytes.
	MaxChanges     = 200
	MaxChangesSize = 128 << 10
	// MaxURN is for the URN of a change, in bytes. A change with a longer URN is left out.
	MaxURN = 2 << 10
	// MaxChangePaths is how many paths of either kind a change has, each of at most MaxChangePath bytes.
	MaxChangePaths = 20
	MaxChangePath  = 256
)

// Limits of a plan.
const (
	// MaxPlanPart is how much of a plan one Secret holds, in bytes. An object in the cluster has at most 1 MiB, including its metadata.
	MaxPlanPart = 900 << 10
	// maxPlanParts is the maximum number of Secrets for Pulumi's file, compressed, and MaxPlanSize its maximum size then, in bytes.
	maxPlanParts = 8
	MaxPlanSize  = maxPlanParts * MaxPlanPart
	// MaxPlanFile is for Pulumi's file as Pulumi wrote it, uncompressed, in bytes.
	MaxPlanFile = 64 << 20
	// MaxPlanText is for the changes as text, compressed, in bytes. The text contains the number of changes that do not fit.
	MaxPlanText = MaxPlanPart
	// MaxPlanPartFields is the maximum number of fields in one message of GetPlan, and MaxPlanPartSize its maximum size in bytes.
	MaxPlanPartFields = 10
	MaxPlanPartSize   = MaxChunkSize + 1<<10
	// PlanKeySize is for the key of the digests, in bytes.
	PlanKeySize = 32
)
