package source

import (
	"errors"
	"maps"
	"slices"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/source/artifact"
)

// fetchReasons has the reason for each kind of error of the store: of Stacks, and of Updates. The agent's refusals of an artifact have the
// same reasons, see deliveryReasons in internal/controller/update.
var fetchReasons = map[artifact.Kind]string{
	artifact.NotFound:    pulumiv1.ArtifactFetchFailedReason,
	artifact.Unavailable: pulumiv1.ArtifactFetchFailedReason,
	artifact.Integrity:   pulumiv1.ArtifactDigestMismatchReason,
	artifact.TooLarge:    pulumiv1.ArtifactTooLargeReason,
	artifact.Unusable:    pulumiv1.ArtifactUnusableReason,
}

// FetchReason returns the reason for an error of the store, and the kind of the error, which is empty for an error of another type.
func FetchReason(err error) (string, artifact.Kind) {
	if failed := (*artifact.FetchError)(nil); errors.As(err, &failed) {
		return fetchReasons[failed.Kind], failed.Kind
	}
	return pulumiv1.ArtifactFetchFailedReason, ""
}

// IsFetchReason reports whether FetchReason returns the reason for some error.
func IsFetchReason(reason string) bool {
	return slices.Contains(slices.Collect(maps.Values(fetchReasons)), reason)
}
