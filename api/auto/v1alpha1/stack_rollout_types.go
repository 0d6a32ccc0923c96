package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/fluxcd/pkg/apis/meta"
)

// StackRolloutKind is the kind of a StackRollout.
const StackRolloutKind = "StackRollout"

// RolloutComplete is the condition of a StackRollout that is true when all of its Stacks have the revision that is the target.
const RolloutComplete = "Complete"

// RolloutSource names the source of a StackRollout, in its namespace.
type RolloutSource struct {
	// APIVersion of the source. Only the group matters; the version is ignored. Defaults to source.toolkit.fluxcd.io/v1, and for a Program
	// to pulumi.com/v1.
	// +kubebuilder:validation:MaxLength=317
	// +optional
	APIVersion string `json:"apiVersion,omitempty"`

	// Kind of the source: GitRepository, OCIRepository, Bucket, ExternalArtifact, Program, or another kind that publishes its artifact as
	// Flux does.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +required
	Kind string `json:"kind"`

	// Name of the source.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +required
	Name string `json:"name"`
}

// FromNamespaces says in which namespaces Stacks may join a StackRollout.
// +kubebuilder:validation:Enum=Same;All;Selector
type FromNamespaces string

const (
	// FromSame admits Stacks in the namespace of the StackRollout. It is the default.
	FromSame FromNamespaces = "Same"

	// FromAll admits Stacks in all namespaces.
	FromAll FromNamespaces = "All"

	// FromSelector admits Stacks in the namespace of the StackRollout, and in those whose labels match a selector.
	FromSelector FromNamespaces = "Selector"
)

// AllowedNamespaces says in which namespaces Stacks may join a StackRollout.
//
// +kubebuilder:validation:XValidation:rule="(has(self.from) && self.from == 'Selector') == has(self.selector)",message="selector is for from: Selector, which needs it"
type AllowedNamespaces struct {
	// From is Same, the default, for the namespace of the StackRollout, or All, or Selector.
	// +kubebuilder:default=Same
	// +optional
	From FromNamespaces `json:"from,omitempty"`

	// Selector selects namespaces by the labels of their Namespaces, besides that of the StackRollout.
	// +optional
	Selector *metav1.LabelSelector `json:"selector,omitempty"`
}

// RolloutPromotion says what begins a wave.
// +kubebuilder:validation:Enum=Automatic;Manual
type RolloutPromotion string

const (
	// PromoteAutomatic begins a wave when the one before is complete. It is the default.
	PromoteAutomatic RolloutPromotion = "Automatic"

	// PromoteManual begins a wave when the one before is complete and somebody has approved the revision.
	PromoteManual RolloutPromotion = "Manual"
)

// RolloutWave is a group of Stacks that get a revision before those of the next wave.
type RolloutWave struct {
	// Name of the wave.
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern="^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
	// +required
	Name string `json:"name"`

	// Stacks selects Stacks by their labels, from those that are in no earlier wave. The last wave has no selector: it has all others.
	// +optional
	Stacks *metav1.LabelSelector `json:"stacks,omitempty"`

	// Namespaces selects Stacks by the labels of their Namespaces, which those who write Stacks cannot change. With stacks, both have to match.
	// +optional
	Namespaces *metav1.LabelSelector `json:"namespaces,omitempty"`

	// Limit is how many of the selected Stacks are in the wave: a number, or a percentage, rounded up. Which ones is random, and not the same
	// for each revision.
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:XValidation:rule="type(self) != int || self >= 1",message="must be positive, or a percentage from 1% to 100%"
	// +kubebuilder:validation:Pattern="^(100|[1-9][0-9]?)%$"
	// +optional
	Limit *intstr.IntOrString `json:"limit,omitempty"`

	// Promotion is Automatic, the default, or Manual: then the wave begins only when somebody has approved the revision with an Approval.
	// +optional
	Promotion RolloutPromotion `json:"promotion,omitempty"`

	// MaxConcurrent is how many Stacks of the wave are updated at once. Defaults to spec.maxConcurrent.
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:XValidation:rule="type(self) != int || self >= 1 && self <= 200",message="must be from 1 to 200, or a percentage from 1% to 100%"
	// +kubebuilder:validation:Pattern="^(100|[1-9][0-9]?)%$"
	// +optional
	MaxConcurrent *intstr.IntOrString `json:"maxConcurrent,omitempty"`

	// MaxFailures is how many Stacks of the wave may fail before no other Stack gets the revision. Defaults to spec.maxFailures.
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:XValidation:rule="type(self) != int || self >= 0",message="must not be negative, or a percentage from 0% to 100%"
	// +kubebuilder:validation:Pattern="^(100|[1-9]?[0-9])%$"
	// +optional
	MaxFailures *intstr.IntOrString `json:"maxFailures,omitempty"`

	// Soak is how long the next wave waits after a Stack of this one was updated last, for example "1h".
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern="^([0-9]+(\\.[0-9]+)?(ms|s|m|h))+$"
	// +optional
	Soak *metav1.Duration `json:"soak,omitempty"`

	// NoDrift looks once for drift of each Stack of the wave after it was updated, also of one without spec.drift. A Stack whose resources were
	// changed outside of Pulumi, or that cannot be checked, counts as failed until a later check finds no drift.
	// +optional
	NoDrift bool `json:"noDrift,omitempty"`

	// Check is a CEL expression that has to be true of each Stack of the wave, which is "stack" in it, after it was updated. A Stack for which it
	// is false counts as failed. It may read what a readyExpr of a Stack may read; of Stacks in other namespaces, only outputs that they share
	// with the namespace of the StackRollout.
	// +kubebuilder:validation:MaxLength=2048
	// +optional
	Check string `json:"check,omitempty"`

	// Timeout is how long a Stack may take to be updated before it counts as failed. Defaults to two hours.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern="^([0-9]+(\\.[0-9]+)?(ms|s|m|h))+$"
	// +optional
	Timeout *metav1.Duration `json:"timeout,omitempty"`
}

// StackRolloutSpec says in which order Stacks get the revisions of a source.
//
// +kubebuilder:validation:XValidation:rule="!has(self.waves[size(self.waves)-1].stacks) && !has(self.waves[size(self.waves)-1].namespaces) && !has(self.waves[size(self.waves)-1].limit)",message="the last wave has neither stacks nor namespaces nor limit: it has all Stacks that are in no other wave"
type StackRolloutSpec struct {
	// SourceRef names the source whose revisions are rolled out, in the namespace of the StackRollout.
	// +required
	SourceRef RolloutSource `json:"sourceRef"`

	// AllowedNamespaces says in which namespaces Stacks may join. Defaults to the namespace of the StackRollout.
	// +optional
	AllowedNamespaces *AllowedNamespaces `json:"allowedNamespaces,omitempty"`

	// Waves are the groups of Stacks, in the order in which they get a revision.
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=20
	// +required
	Waves []RolloutWave `json:"waves"`

	// MaxConcurrent is how many Stacks of a wave are updated at once: a number up to 200, or a percentage of its Stacks, rounded up. Defaults
	// to 10.
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:XValidation:rule="type(self) != int || self >= 1 && self <= 200",message="must be from 1 to 200, or a percentage from 1% to 100%"
	// +kubebuilder:validation:Pattern="^(100|[1-9][0-9]?)%$"
	// +optional
	MaxConcurrent *intstr.IntOrString `json:"maxConcurrent,omitempty"`

	// MaxFailures is how many Stacks of a wave may fail before no other Stack gets the revision: a number, or a percentage of its Stacks,
	// rounded down. Defaults to 0.
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:XValidation:rule="type(self) != int || self >= 0",message="must not be negative, or a percentage from 0% to 100%"
	// +kubebuilder:validation:Pattern="^(100|[1-9]?[0-9])%$"
	// +optional
	MaxFailures *intstr.IntOrString `json:"maxFailures,omitempty"`

	// Windows say when Stacks may get their turn. Updates that run go on. Without windows, they may always get it.
	// +kubebuilder:validation:MaxItems=50
	// +listType=atomic
	// +optional
	Windows []Window `json:"windows,omitempty"`

	// Suspend lets no other Stack get the revision. Updates that run go on.
	// +optional
	Suspend bool `json:"suspend,omitempty"`
}

// RolloutRevision is a revision of a source.
type RolloutRevision struct {
	// Revision as the source shows it, for example "main@sha1:…".
	// +required
	Revision string `json:"revision"`

	// Digest of the artifact, for example "sha256:…".
	// +optional
	Digest string `json:"digest,omitempty"`
}

// RolloutTarget is the revision that is rolled out.
type RolloutTarget struct {
	RolloutRevision `json:",inline"`

	// Since is when the revision became the target.
	// +required
	Since metav1.Time `json:"since"`
}

// RolloutWaveState is how far a wave is.
// +kubebuilder:validation:Enum=Pending;Running;Soaking;Complete
type RolloutWaveState string

const (
	// RolloutWavePending means that an earlier wave is not complete.
	RolloutWavePending RolloutWaveState = "Pending"

	// RolloutWaveRunning means that Stacks of the wave do not have the target yet.
	RolloutWaveRunning RolloutWaveState = "Running"

	// RolloutWaveSoaking means that all Stacks of the wave have the target, and that the time of its soak is not over.
	RolloutWaveSoaking RolloutWaveState = "Soaking"

	// RolloutWaveComplete means that the next wave may start.
	RolloutWaveComplete RolloutWaveState = "Complete"
)

// RolloutWaveStatus is how far a wave is with the target.
type RolloutWaveStatus struct {
	// Name of the wave.
	// +required
	Name string `json:"name"`

	// State is Pending, Running, Soaking or Complete.
	// +required
	State RolloutWaveState `json:"state"`

	// Stacks is how many Stacks are in the wave.
	// +required
	Stacks int32 `json:"stacks"`

	// Updated is how many of them were updated to the target, and are ready.
	// +optional
	Updated int32 `json:"updated,omitempty"`

	// Unchanged is how many of them are ready with the target, which did not change what they consist of.
	// +optional
	Unchanged int32 `json:"unchanged,omitempty"`

	// Running is how many of them may be updated now.
	// +optional
	Running int32 `json:"running,omitempty"`

	// Failing is how many of them failed with the target, or took too long.
	// +optional
	Failing int32 `json:"failing,omitempty"`

	// BrokenBefore is how many of them failed with the target, and with the revisions before. They do not count as failing.
	// +optional
	BrokenBefore int32 `json:"brokenBefore,omitempty"`

	// Waiting is how many of them do not have the target yet.
	// +optional
	Waiting int32 `json:"waiting,omitempty"`

	// LeftOut is how many of them are suspended, being deleted or only previewed. They do not count.
	// +optional
	LeftOut int32 `json:"leftOut,omitempty"`

	// SoakingSince is when a Stack of the wave was updated last.
	// +optional
	SoakingSince *metav1.Time `json:"soakingSince,omitempty"`

	// Order is up to where in the random order of the target the Stacks of a wave with a limit are.
	// +optional
	Order *int64 `json:"order,omitempty"`

	// Limit is the limit from which Order was computed.
	// +optional
	Limit string `json:"limit,omitempty"`
}

// RolloutTurn is a Stack that may be updated to the target.
type RolloutTurn struct {
	// Stack is the namespace and the name of the Stack, for example "team-a/network".
	// +required
	Stack string `json:"stack"`

	// Wave is the name of the wave that the Stack is in.
	// +optional
	Wave string `json:"wave,omitempty"`

	// Since is when the Stack got its turn.
	// +required
	Since metav1.Time `json:"since"`

	// CheckDrift is true when the Stack has to look for drift after its update. Its turn lasts until it has.
	// +optional
	CheckDrift bool `json:"checkDrift,omitempty"`
}

// RolloutFailure is a Stack that failed with the target, or cannot take part.
type RolloutFailure struct {
	// Stack is the namespace and the name of the Stack, for example "team-a/network".
	// +required
	Stack string `json:"stack"`

	// Message says why, in at most 200 characters.
	// +optional
	Message string `json:"message,omitempty"`
}

// StackRolloutStatus is how far a StackRollout is.
type StackRolloutStatus struct {
	meta.ReconcileRequestStatus `json:",inline"`

	// ObservedGeneration is the generation of the StackRollout that the conditions describe.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// Conditions of the StackRollout: Ready, Reconciling, Stalled, and Complete, which is true when all waves are complete with the target.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// Target is the revision that is rolled out.
	// +optional
	Target *RolloutTarget `json:"target,omitempty"`

	// Stable is the last target that reached all Stacks, and at least one. New Stacks start with it, unless it was rejected since: then it has
	// no digest.
	// +optional
	Stable *RolloutRevision `json:"stable,omitempty"`

	// Earlier are the targets before, and other names that the target had, the newest first: ten, and older ones that Stacks still have, at most fifty.
	// +listType=atomic
	// +optional
	Earlier []RolloutRevision `json:"earlier,omitempty"`

	// Rejected is the target, if somebody has rejected it: no other Stack gets it.
	// +optional
	Rejected string `json:"rejected,omitempty"`

	// Halted is the target, if too many Stacks have failed with it, until all waves are complete.
	// +optional
	Halted string `json:"halted,omitempty"`

	// Wave is the name of the wave that is open; empty when all are complete.
	// +optional
	Wave string `json:"wave,omitempty"`

	// Waves say how far each wave is.
	// +listType=atomic
	// +optional
	Waves []RolloutWaveStatus `json:"waves,omitempty"`

	// Done says how many Stacks of all waves have the target, for example "24/900".
	// +optional
	Done string `json:"done,omitempty"`

	// Paused is true while no update to the target may begin, also of Stacks that have a turn: the StackRollout is suspended, the target was
	// rejected, or spec.windows allow nothing.
	// +optional
	Paused bool `json:"paused,omitempty"`

	// Turns are the Stacks that may be updated to the target now: at most maxConcurrent.
	// +listType=atomic
	// +optional
	Turns []RolloutTurn `json:"turns,omitempty"`

	// Plans are the Stacks with spec.approval that may make a plan of the target before they have a turn, for example "team-a/network": at most
	// 200. A Stack gets its turn when its plan is approved.
	// +listType=atomic
	// +optional
	Plans []string `json:"plans,omitempty"`

	// Failing are Stacks that failed with the target: at most ten.
	// +listType=atomic
	// +optional
	Failing []RolloutFailure `json:"failing,omitempty"`

	// Refused are Stacks that name the StackRollout and get no revision from it: at most ten.
	// +listType=atomic
	// +optional
	Refused []RolloutFailure `json:"refused,omitempty"`
}

// GetConditions returns the conditions of the StackRollout.
func (in *StackRollout) GetConditions() []metav1.Condition {
	return in.Status.Conditions
}

// SetConditions replaces the conditions of the StackRollout.
func (in *StackRollout) SetConditions(conditions []metav1.Condition) {
	in.Status.Conditions = conditions
}

// StackRollout updates Stacks to the revisions of one source in waves. A Stack joins with spec.rolloutRef.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:categories={pulumi,fluxcd}
// +kubebuilder:metadata:annotations="kustomize.toolkit.fluxcd.io/substitute=disabled"
// +kubebuilder:printcolumn:name="Revision",type=string,JSONPath=`.status.target.revision`
// +kubebuilder:printcolumn:name="Wave",type=string,JSONPath=`.status.wave`
// +kubebuilder:printcolumn:name="Done",type=string,JSONPath=`.status.done`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Status",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type StackRollout struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec says in which order Stacks get the revisions of a source.
	// +required
	Spec StackRolloutSpec `json:"spec"`

	// Status is how far the StackRollout is.
	// +kubebuilder:default={"observedGeneration":-1}
	// +optional
	Status StackRolloutStatus `json:"status,omitempty"`
}

// StackRolloutList is a list of StackRollouts.
//
// +kubebuilder:object:root=true
type StackRolloutList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []StackRollout `json:"items"`
}
