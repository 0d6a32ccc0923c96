package update

// fieldOwner is the field manager of all that the controller writes.
const fieldOwner = "stack-controller"

// Reasons of Progressing=False of an Update that waits, beside those of the API.
const (
	// reasonQueued says that another operation of the same Workspace comes first.
	reasonQueued = "Queued"
	// reasonArtifactPending says that the artifact is being fetched.
	reasonArtifactPending = "ArtifactPending"
	// reasonSourceDelivery says that the artifact is on its way to the agent.
	reasonSourceDelivery = "SourceDelivery"
)

// Reasons of events.
const (
	eventSucceeded = "UpdateSucceeded"
	eventFailed    = "UpdateFailed"
	eventExpired   = "UpdateExpired"
	// eventOutputsNotStored warns about an operation that succeeded and whose outputs no Secret holds.
	eventOutputsNotStored = "OutputsNotStored"
)
