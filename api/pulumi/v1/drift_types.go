package v1

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// DriftedCondition of a Stack says whether resources were changed outside of Pulumi.
const DriftedCondition = "Drifted"

// DefaultDriftInterval is the time from one check for drift to the next where the spec does not say.
const DefaultDriftInterval = time.Hour

// DriftMode says what is done about drift.
// +kubebuilder:validation:Enum=Detect;Correct
type DriftMode string

const (
	// DriftModeDetect reports drift.
	DriftModeDetect DriftMode = "Detect"

	// DriftModeCorrect reports drift, and runs an update of the resources that drifted.
	DriftModeCorrect DriftMode = "Correct"
)

// DriftSpec says how to look for changes that were made to resources outside of Pulumi.
type DriftSpec struct {
	// Mode is Detect or Correct.
	// +kubebuilder:default=Detect
	// +optional
	Mode DriftMode `json:"mode,omitempty"`

	// Interval is the time from one check to the next, at least 5m, for example "1h".
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern="^([0-9]+(\\.[0-9]+)?(ms|s|m|h))+$"
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('5m')",message="interval must be a duration of at least 5m"
	// +kubebuilder:default="1h"
	// +optional
	Interval metav1.Duration `json:"interval,omitempty,omitzero"`

	// Ignore lists what is not reported and not corrected.
	// +kubebuilder:validation:MaxItems=50
	// +listType=atomic
	// +optional
	Ignore []DriftIgnore `json:"ignore,omitempty"`
}

// DriftIgnore names resources, or properties of them, whose drift does not count.
type DriftIgnore struct {
	// Target selects resources. Absent, all are meant.
	// +optional
	Target *DriftTarget `json:"target,omitempty"`

	// Paths of the properties that do not count, with what is below them, for example "desiredCapacity" or "tags". Empty means all, and
	// also that the resource is gone.
	// +kubebuilder:validation:MaxItems=50
	// +kubebuilder:validation:items:MaxLength=256
	// +listType=atomic
	// +optional
	Paths []string `json:"paths,omitempty"`
}

// DriftTarget selects resources by what is in their URNs. The character * stands for any text.
type DriftTarget struct {
	// Type of the resources, for example "aws:autoscaling/*". Empty means all.
	// +kubebuilder:validation:MaxLength=256
	// +optional
	Type string `json:"type,omitempty"`

	// Name of the resources in the program. Empty means all.
	// +kubebuilder:validation:MaxLength=256
	// +optional
	Name string `json:"name,omitempty"`
}

// DriftStatus is what was found outside of Pulumi.
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

	// LastHandledCheckAt is the value of the annotation pulumi.com/drift-check that was last seen.
	// +optional
	LastHandledCheckAt string `json:"lastHandledCheckAt,omitempty"`

	// Since is when this drift was first seen.
	// +optional
	Since *metav1.Time `json:"since,omitempty"`

	// Digest identifies the drift: which resources, and which of their properties. It says nothing about values.
	// +optional
	Digest string `json:"digest,omitempty"`

	// Resources that drifted, at most 50.
	// +listType=atomic
	// +optional
	Resources []DriftedResource `json:"resources,omitempty"`

	// OmittedResources is how many are not listed.
	// +optional
	OmittedResources int64 `json:"omittedResources,omitempty"`

	// Unconfirmed is the digest of drift that one check saw. It is reported when a second one sees the same.
	// +optional
	Unconfirmed string `json:"unconfirmed,omitempty"`

	// Failures counts the checks that failed, one after the other.
	// +optional
	Failures int64 `json:"failures,omitempty"`

	// Correction is the last update that was to correct drift.
	// +optional
	Correction *DriftCorrection `json:"correction,omitempty"`
}

// DriftedResource is one resource that is not as the state has it.
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

// DriftChange says what happened to a resource.
type DriftChange string

const (
	// DriftGone means that the resource does not exist any more.
	DriftGone DriftChange = "Gone"

	// DriftChanged means that properties of the resource have other values.
	DriftChanged DriftChange = "Changed"
)

// DriftCorrection counts the updates that corrected the same drift.
type DriftCorrection struct {
	// Digest of the drift that was corrected.
	// +required
	Digest string `json:"digest"`

	// Count is how many updates corrected it, each at most an hour after the first.
	// +required
	Count int64 `json:"count"`

	// Since is when the first of them started.
	// +required
	Since metav1.Time `json:"since"`
}
