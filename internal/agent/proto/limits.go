package proto

// Limits of messages, in bytes. An agent is as trustworthy as the owner of its pod, so the controller takes no more than an honest one has
// to say.
const (
	// MaxMessageSize is the largest request. It carries all configuration of an operation.
	MaxMessageSize = 16 << 20
	// MaxChunkSize is the largest chunk of PushSource.
	MaxChunkSize = 1 << 20
	// MaxInfoSize is the largest answer of GetInfo.
	MaxInfoSize = 256 << 10
	// MaxOperationSize is the largest Operation without outputs.
	MaxOperationSize = 32 << 10
	// MaxResultSize is the largest answer of GetOperation, the only one with outputs.
	MaxResultSize = 5 << 20
	// MaxEmptySize is the largest answer that says nothing but that all is well.
	MaxEmptySize = 1 << 10
)

// Limits of fields: how many a message may have, with those of all messages in it.
const (
	// MaxRequestFields is for requests.
	MaxRequestFields = 100_000
	// MaxInfoFields is for the answer of GetInfo. It has at most 51 operations.
	MaxInfoFields = 8_000
	// MaxOperationFields is for an Operation without outputs.
	MaxOperationFields = 500
	// MaxResultFields is for the answer of GetOperation: an output has up to 6, and a change 3 and its paths.
	MaxResultFields = MaxOperationFields + 6*MaxOutputs + MaxChanges*(3+2*MaxChangePaths)
	// MaxEmptyFields is for answers that say nothing.
	MaxEmptyFields = 10
)

// Limits of the outputs of an Operation. The Secret where they end has room for fewer.
const (
	// MaxOutputs is how many there may be.
	MaxOutputs = 10_000
	// MaxOutputsSize is for their names and values together, in bytes.
	MaxOutputsSize = 4 << 20
)

// Limits of what is in an Operation, in bytes and in numbers.
const (
	// MaxText is for messages to people, and MaxBriefText for those in the answer of GetInfo.
	MaxText      = 4 << 10
	MaxBriefText = 1 << 10
	// MaxPermalink is for the address of an update in Pulumi Cloud.
	MaxPermalink = 2 << 10
	// MaxName is for the name of a project, of a runtime, of a user, of a host, of a version.
	MaxName = 256
	// MaxWarnings is how many warnings there are, each at most MaxWarning bytes.
	MaxWarnings = 10
	MaxWarning  = 1 << 10
	// MaxChangeKinds is how many kinds of changes are counted, and MaxChangeKind the length of the name of one.
	MaxChangeKinds = 32
	MaxChangeKind  = 64
)

// Limits of the changes of an Operation, which go into the status of an Update.
const (
	// MaxChanges is how many there are, and MaxChangesSize for all their texts together, in bytes.
	MaxChanges     = 200
	MaxChangesSize = 128 << 10
	// MaxURN is for the URN of one, in bytes. One with a longer URN is left out.
	MaxURN = 2 << 10
	// MaxChangePaths is how many paths one has of either kind, each at most MaxChangePath bytes.
	MaxChangePaths = 20
	MaxChangePath  = 256
)

// Limits of a plan.
const (
	// MaxPlanPart is what of a plan is in one Secret, in bytes. An object of the cluster has at most 1 MiB, of which its metadata is a part.
	MaxPlanPart = 900 << 10
	// maxPlanParts is in how many Secrets Pulumi's file may be, compressed, and MaxPlanSize what it may have then, in bytes.
	maxPlanParts = 8
	MaxPlanSize  = maxPlanParts * MaxPlanPart
	// MaxPlanFile is for Pulumi's file as Pulumi wrote it, in bytes.
	MaxPlanFile = 64 << 20
	// MaxPlanText is for the changes as text, compressed, in bytes. What does not fit is counted in the text.
	MaxPlanText = MaxPlanPart
	// MaxPlanPartFields is for one message of GetPlan, and MaxPlanPartSize for what it has in bytes.
	MaxPlanPartFields = 10
	MaxPlanPartSize   = MaxChunkSize + 1<<10
	// PlanKeySize is for the key of the digests, in bytes.
	PlanKeySize = 32
)
