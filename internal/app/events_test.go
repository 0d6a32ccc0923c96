package app

import (
	"os"
	"slices"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/report/reasons"
)

func TestEachReasonHasOneAction(t *testing.T) {
	g := NewWithT(t)
	found := map[string]pulumiv1.Action{}
	for action, reasons := range actions {
		for _, reason := range reasons {
			g.Expect(found).NotTo(HaveKey(reason))
			found[reason] = action
		}
	}
	stack := &pulumiv1.Stack{}
	g.Expect(actionOf(stack, pulumiv1.SourceNotFoundReason)).To(Equal("ResolveSource"))
	g.Expect(actionOf(stack, "StackCreated")).To(Equal("Update"))
	g.Expect(actionOf(stack, pulumiv1.DependencyNotReadyReason)).To(Equal("CheckDependencies"))
	g.Expect(actionOf(stack, pulumiv1.SuspendedReason)).To(Equal("Reconcile"))
	g.Expect(actionOf(&autov1alpha1.Workspace{}, autov1alpha1.ImagePullFailedReason)).To(Equal("PrepareWorkspace"))
}

// justReconciled are the reasons of Stacks whose events say no more than that the Stack was reconciled.
var justReconciled = []string{
	pulumiv1.ProcessingCompletedReason, pulumiv1.NotReadyInProgressReason, pulumiv1.StackProcessingReason, pulumiv1.ProgressingWithRetryReason,
	pulumiv1.SpecInvalidReason, pulumiv1.SuspendedReason, autov1alpha1.UpdateTransientFailureReason, "Progressing", "NotReadyStalled",
}

func TestEveryReasonOfAStackHasAnAction(t *testing.T) {
	g := NewWithT(t)
	rows := reasons.Of("Stack").Rows
	g.Expect(rows).NotTo(BeEmpty())
	for _, row := range rows {
		plain := actionOf(&pulumiv1.Stack{}, row.Reason) == string(pulumiv1.ReconcileAction)
		if plain != slices.Contains(justReconciled, row.Reason) {
			t.Errorf("%s has no action: put it into actions, or into justReconciled", row.Reason)
		}
	}
}

func TestGuideListsTheActions(t *testing.T) {
	g := NewWithT(t)
	page, err := os.ReadFile("../../docs/guides/alerts.md")
	g.Expect(err).NotTo(HaveOccurred())
	listed := []pulumiv1.Action{pulumiv1.ReconcileAction}
	for action := range actions {
		listed = append(listed, action)
	}
	for _, action := range listed {
		g.Expect(string(page)).To(ContainSubstring("\n| `" + string(action) + "` |"))
	}
}

func TestEventsNameTheSourceOrTheStackToo(t *testing.T) {
	owned := metav1.ObjectMeta{Namespace: "prod", Name: "a-1", OwnerReferences: []metav1.OwnerReference{
		{APIVersion: "pulumi.com/v1", Kind: "Stack", Name: "a", UID: "u", Controller: new(true)},
	}}
	stack := func(spec pulumiv1.StackSpec) *pulumiv1.Stack {
		return &pulumiv1.Stack{Namespace: "prod", Name: "a", Spec: spec}
	}
	source := pulumiv1.FluxSourceReference{APIVersion: "source.toolkit.fluxcd.io/v1", Kind: "GitRepository", Name: "s"}
	elsewhere := source
	elsewhere.Namespace = "shared"
	for name, tt := range map[string]struct {
		object runtime.Object
		want   *corev1.ObjectReference
	}{
		"a Flux source": {
			stack(pulumiv1.StackSpec{FluxSource: &pulumiv1.FluxSource{SourceRef: source}}),
			&corev1.ObjectReference{APIVersion: source.APIVersion, Kind: "GitRepository", Namespace: "prod", Name: "s"},
		},
		"a source of another namespace": {
			stack(pulumiv1.StackSpec{FluxSource: &pulumiv1.FluxSource{SourceRef: elsewhere}}),
			&corev1.ObjectReference{APIVersion: source.APIVersion, Kind: "GitRepository", Namespace: "shared", Name: "s"},
		},
		"a Program": {
			stack(pulumiv1.StackSpec{ProgramRef: &pulumiv1.ProgramReference{Name: "p"}}),
			&corev1.ObjectReference{APIVersion: "pulumi.com/v1", Kind: "Program", Namespace: "prod", Name: "p"},
		},
		"a git repository": {stack(pulumiv1.StackSpec{}), nil},
		"an Update of a Stack": {
			&autov1alpha1.Update{ObjectMeta: owned},
			&corev1.ObjectReference{APIVersion: "pulumi.com/v1", Kind: "Stack", Namespace: "prod", Name: "a", UID: "u"},
		},
		"a Workspace of a user": {&autov1alpha1.Workspace{}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			NewWithT(t).Expect(relatedOf(tt.object)).To(Equal(tt.want))
		})
	}
}
