package v1

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// DriftedCondition is the condition of a Stack that reports whether resources were changed outside of Pulumi.
const DriftedCondition = "Drifted"

// DefaultDriftInterval is the time between two checks for drift if spec.drift.interval is not set.
const DefaultDriftInterval = time.Hour

// DriftMode defines what the controller does about drift.
// +kubebuilder:validation:Enum=Detect;Correct
type DriftMode string

const (
	// DriftModeDetect reports drift.
	DriftModeDetect DriftMode = "Detect"

	// DriftModeCorrect reports drift, and runs an update of the resources that drifted.
	DriftModeCorrect DriftMode = "Correct"
)

// DriftSpec defines how the controller checks for changes of resources that were made outside of Pulumi.
type DriftSpec struct {
	// Mode is Detect, the default, which reports drift, or Correct, which also updates the resources that drifted.
	// +kubebuilder:default=Detect
	// +optional
	Mode DriftMode `json:"mode,omitempty"`

	// Interval is the time between two checks, at least 5m. Defaults to 1h.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern="^([0-9]+(\\.[0-9]+)?(ms|s|m|h))+$"
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('5m')",message="interval must be a duration of at least 5m"
	// +kubebuilder:default="1h"
	// +optional
	Interval metav1.Duration `json:"interval,omitempty,omitzero"`

	// Ignore lists drift that is not reported and is no reason for a correction. A correction of other drift of the same resource, or of one
	// that it depends on, reverts it, too, unless the program has the property in the option ignoreChanges.
	// +kubebuilder:validation:MaxItems=50
	// +listType=atomic
	// +optional
	Ignore []DriftIgnore `json:"ignore,omitempty"`
}

// DriftIgnore selects resources, or properties of resources, whose drift is ignored.
type DriftIgnore struct {
	// Target selects resources. Defaults to all.
	// +optional
	Target *DriftTarget `json:"target,omitempty"`

	// Paths of the properties to ignore, with everything below them, for example "desiredCapacity" or "tags". If it is empty, all drift is
	// ignored, also of resources that are gone.
	// +kubebuilder:validation:MaxItems=50
	// +kubebuilder:validation:items:MaxLength=256
	// +listType=atomic
	// +optional
	Paths []string `json:"paths,omitempty"`
}

// DriftTarget selects resources by parts of their URNs. The character * matches any text.
type DriftTarget struct {
	// Type of the resources, for example "aws:autoscaling/*"; * matches any text. Defaults to all.
	// +kubebuilder:validation:MaxLength=256
	// +optional
	Type string `json:"type,omitempty"`

	// Name of the resources in the program; * matches any text. Defaults to all.
	// +kubebuilder:validation:MaxLength=256
	// +optional
	Name string `json:"name,omitempty"`
}

// DriftStatus is the result of the checks for drift.
type DriftStatus struct {
	// FirstCheckTime is when the first check is due.
	// +optional
	FirstCheckTime *metav1.Time `json:"firstCheckTime,omitempty"`

	// LastCheckTime is when the last check ended.
	// +optional
	LastCheckTime *metav1.Time `json:"lastCheckTime,omitempty"`

	// CheckedUpdate is the name of the last update at the time of the check.
	// +optional
	CheckedUpdate string `json:"checkedUpdate,omitempty"`

	// LastHandledCheckAt is the value of the annotation pulumi.com/drift-check that was handled last.
	// +optional
	LastHandledCheckAt string `json:"lastHandledCheckAt,omitempty"`

	// Since is when this drift was first reported.
	// +optional
	Since *metav1.Time `json:"since,omitempty"`

	// Digest identifies the drift: the resources and their properties that differ. It does not depend on values.
	// +optional
	Digest string `json:"digest,omitempty"`

	// Resources that drifted, at most 50.
	// +listType=atomic
	// +optional
	Resources []DriftedResource `json:"resources,omitempty"`

	// OmittedResources is how many drifted resources are not listed.
	// +optional
	OmittedResources int64 `json:"omittedResources,omitempty"`

	// Unconfirmed is the digest of drift that one check found. It is reported when a second check finds the same.
	// +optional
	Unconfirmed string `json:"unconfirmed,omitempty"`

	// UnconfirmedChecks is how many checks in a row found something else each. After the third one, what it found is reported.
	// +optional
	UnconfirmedChecks int64 `json:"unconfirmedChecks,omitempty"`

	// Failures is how many checks in a row failed.
	// +optional
	Failures int64 `json:"failures,omitempty"`

	// Correction counts the last corrections.
	// +optional
	Correction *DriftCorrection `json:"correction,omitempty"`
}

// DriftedResource is a resource that differs from the state.
type DriftedResource struct {
	// URN of the resource.
	// +required
	URN string `json:"urn"`

	// Change is Gone or Changed.
	// +required
	Change DriftChange `json:"change"`

	// Paths are the properties that differ, for example "tags.owner". At most 20 are listed.
	// +listType=atomic
	// +optional
	Paths []string `json:"paths,omitempty"`
}

// DriftChange is what happened to a resource.
type DriftChange string

const (
	// DriftGone means that the resource no longer exists.
	DriftGone DriftChange = "Gone"

	// DriftChanged means that properties of the resource have other values.
	DriftChanged DriftChange = "Changed"
)

// DriftCorrection counts the updates that were made to correct drift: those in a row for the same drift, and all of an hour.
type DriftCorrection struct {
	// Digest of the drift that was corrected.
	// +required
	Digest string `json:"digest"`

	// Count is how many updates were made to correct it, each less than an hour after the first.
	// +required
	Count int64 `json:"count"`

	// Since is when the first of these updates ended.
	// +required
	Since metav1.Time `json:"since"`

	// Total is how many updates were made to correct any drift, each less than an hour after the first.
	// +optional
	Total int64 `json:"total,omitempty"`

	// TotalSince is when the first of those ended.
	// +optional
	TotalSince *metav1.Time `json:"totalSince,omitempty"`
}
