// Package admission_test checks on a real API server what the admission policies of config/admission and the roles of config/rbac allow
// users to do with approvals.
package admission_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/controlplane"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
	"github.com/stack-controller/stack-controller/tests/tools"
)

const (
	patience = 30 * time.Second
	digest   = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
)

var (
	cluster *controlplane.ControlPlane
	admin   client.Client
	scheme  = runtime.NewScheme()
)

func TestMain(m *testing.M) {
	os.Exit(suite.EachPass(func() int {
		return controlplane.RunTests(m, controlplane.Options{CRDs: []string{controlplane.ProductCRDs()}}, setup)
	}))
}

// setup applies the policies and roles as they are shipped. alice is an approver in the namespace "bank", dan in "shop". tenant can edit
// Stacks in "bank", and owner can also bypass their approval.
func setup(cp *controlplane.ControlPlane) error {
	ctx := context.Background()
	cluster = cp
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, pulumiv1.AddToScheme, autov1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			return err
		}
	}
	config := filepath.Join(tools.RepositoryRoot(), "config")
	for _, path := range []string{"admission/approval_by.yaml", "admission/stack_approval.yaml", "admission/stack_rollout.yaml", "admission/update_owner.yaml", "rbac/approver_role.yaml", "rbac/edit_role.yaml", "rbac/view_role.yaml"} {
		if _, err := cp.Kubectl(ctx, "apply", "-f", filepath.Join(config, filepath.FromSlash(path))); err != nil {
			return err
		}
	}
	var err error
	if admin, err = client.New(cp.Config(), client.Options{Scheme: scheme}); err != nil {
		return err
	}
	objects := []client.Object{
		&rbacv1.ClusterRole{Name: "bypass", Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{"pulumi.com"}, Resources: []string{"stacks"}, Verbs: []string{"bypass"}},
		}},
	}
	for _, namespace := range []string{"bank", "shop"} {
		objects = append(objects, &corev1.Namespace{Name: namespace})
	}
	objects = append(objects, binding("bank", "alice", "stack-controller-approver"), binding("shop", "dan", "stack-controller-approver"),
		binding("bank", "tenant", "stack-controller-edit"), binding("bank", "tenant", "stack-controller-view"),
		binding("bank", "owner", "stack-controller-edit"), binding("bank", "owner", "stack-controller-view"), binding("bank", "owner", "bypass"))
	for _, object := range objects {
		if err := admin.Create(ctx, object); err != nil {
			return err
		}
	}
	return nil
}

func binding(namespace, user, role string) *rbacv1.RoleBinding {
	return &rbacv1.RoleBinding{
		Namespace: namespace, Name: user + "-" + role,
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}},
	}
}

func as(g *WithT, user string) client.Client {
	c, err := client.New(cluster.UserConfig(user), client.Options{Scheme: scheme})
	g.Expect(err).NotTo(HaveOccurred())
	return c
}

func approval(namespace, by string) *autov1alpha1.Approval {
	return &autov1alpha1.Approval{
		Namespace: namespace, GenerateName: "a-",
		Spec: autov1alpha1.ApprovalSpec{Update: "app-1", Digest: digest, Decision: autov1alpha1.ApprovalApprove, By: by},
	}
}

func forbidden(err error) bool { return apierrors.IsForbidden(err) }

func TestApprovalIsByWhoMakesIt(t *testing.T) {
	g := NewWithT(t)
	// A policy takes effect a moment after its creation.
	g.Eventually(func() error { return as(g, "alice").Create(t.Context(), approval("bank", "bob")) }, patience).Should(
		And(Satisfy(forbidden), MatchError(ContainSubstring("spec.by has to be the user who creates the Approval: alice"))))
	g.Expect(admin.Create(t.Context(), approval("bank", "alice"))).To(Satisfy(forbidden), "not even an administrator speaks for others")
	own := approval("bank", "alice")
	g.Expect(as(g, "alice").Create(t.Context(), own)).To(Succeed())

	g.Expect(as(g, "alice").Create(t.Context(), approval("shop", "alice"))).To(Satisfy(forbidden), "another namespace")
	g.Expect(as(g, "dan").Create(t.Context(), approval("bank", "dan"))).To(Satisfy(forbidden))
	g.Expect(as(g, "tenant").Create(t.Context(), approval("bank", "tenant"))).To(Satisfy(forbidden), "who edits does not approve")
	g.Expect(as(g, "tenant").Get(t.Context(), client.ObjectKeyFromObject(own), own)).To(Succeed())

	changed := own.DeepCopy()
	changed.Spec.Digest = strings.Replace(digest, "0", "1", 1)
	g.Expect(admin.Update(t.Context(), changed)).To(MatchError(ContainSubstring("cannot be changed")))
	forged := own.DeepCopy()
	forged.Status.Conditions = []metav1.Condition{{Type: autov1alpha1.ApprovalAccepted, Status: metav1.ConditionTrue, Reason: "x", LastTransitionTime: metav1.Now()}}
	g.Expect(as(g, "alice").Status().Update(t.Context(), forged)).To(Satisfy(forbidden))
}

func TestWhoEditsAStackCannotWeakenItsApproval(t *testing.T) {
	g := NewWithT(t)
	stack := &pulumiv1.Stack{Namespace: "bank", Name: "app", Spec: pulumiv1.StackSpec{Stack: "dev",
		Approval: &pulumiv1.ApprovalPolicy{ExpiresAfter: metav1.Duration{Duration: time.Hour}, Operations: []pulumiv1.ApprovedOperation{pulumiv1.ApprovedUp, pulumiv1.ApprovedDestroy}}}}
	g.Expect(as(g, "tenant").Create(t.Context(), stack)).To(Succeed())
	edit := func(user string, change func(*pulumiv1.StackSpec), options ...client.UpdateOption) error {
		edited := &pulumiv1.Stack{}
		if err := admin.Get(t.Context(), client.ObjectKeyFromObject(stack), edited); err != nil {
			return err
		}
		change(&edited.Spec)
		return as(g, user).Update(t.Context(), edited, options...)
	}
	weaker := map[string]func(*pulumiv1.StackSpec){
		"removed":           func(s *pulumiv1.StackSpec) { s.Approval = nil },
		"only destructive":  func(s *pulumiv1.StackSpec) { s.Approval.Require = pulumiv1.ApprovalDestructive },
		"without the file":  func(s *pulumiv1.StackSpec) { s.Approval.Enforce = autov1alpha1.EnforceInputs },
		"longer":            func(s *pulumiv1.StackSpec) { s.Approval.ExpiresAfter.Duration = 2 * time.Hour },
		"longer by default": func(s *pulumiv1.StackSpec) { s.Approval.ExpiresAfter = metav1.Duration{} },
		"fewer operations":  func(s *pulumiv1.StackSpec) { s.Approval.Operations = []pulumiv1.ApprovedOperation{pulumiv1.ApprovedUp} },
		"corrected freely":  func(s *pulumiv1.StackSpec) { s.Drift = &pulumiv1.DriftSpec{Mode: pulumiv1.DriftModeCorrect} },
	}
	// Until the policies are loaded, the API server allows such an edit, so the test only does a dry run.
	g.Eventually(func() error { return edit("tenant", weaker["removed"], client.DryRunAll) }, patience).Should(
		And(Satisfy(forbidden), MatchError(ContainSubstring(`needs the verb "bypass"`))))
	for name, change := range weaker {
		g.Expect(edit("tenant", change)).To(Satisfy(forbidden), name)
	}
	g.Expect(as(g, "tenant").Patch(t.Context(), stack.DeepCopy(), client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"approval":null}}`)))).To(Satisfy(forbidden))
	old := []byte(`{"apiVersion":"pulumi.com/v1alpha1","kind":"Stack","spec":{"approval":null}}`)
	out, err := cluster.Kubectl(t.Context(), "--as=tenant", "-n", "bank", "patch", "stacks.v1alpha1.pulumi.com", "app", "--type=merge", "-p", string(old))
	g.Expect(err).To(HaveOccurred(), "the earlier version of the API is no way around: %s", out)

	for name, change := range map[string]func(*pulumiv1.StackSpec){
		"what it does": func(s *pulumiv1.StackSpec) {
			s.Config = map[string]apiextensionsv1.JSON{"x": {Raw: []byte("1")}}
		},
		"shorter":        func(s *pulumiv1.StackSpec) { s.Approval.ExpiresAfter.Duration = 30 * time.Minute },
		"all operations": func(s *pulumiv1.StackSpec) { s.Approval.Operations = nil },
		"detects drift":  func(s *pulumiv1.StackSpec) { s.Drift = &pulumiv1.DriftSpec{} },
		"corrects and asks": func(s *pulumiv1.StackSpec) {
			s.Approval.Operations, s.Drift = nil, &pulumiv1.DriftSpec{Mode: pulumiv1.DriftModeCorrect}
		},
	} {
		g.Expect(edit("tenant", change)).To(Succeed(), name)
	}
	for _, name := range []string{"only destructive", "longer", "removed"} {
		g.Expect(edit("owner", func(s *pulumiv1.StackSpec) {
			if s.Approval == nil {
				s.Approval = &pulumiv1.ApprovalPolicy{}
			}
			weaker[name](s)
		})).To(Succeed(), "the owner may: %s", name)
	}
	// If a Stack has no approval policy, anybody who may edit the Stack may add one.
	g.Expect(edit("tenant", func(s *pulumiv1.StackSpec) { s.Approval = &pulumiv1.ApprovalPolicy{} })).To(Succeed())
	g.Expect(edit("tenant", weaker["removed"])).To(Satisfy(forbidden))
}

func TestWhoEditsAStackCannotTakeItOutOfItsStackRollout(t *testing.T) {
	g := NewWithT(t)
	stack := &pulumiv1.Stack{Namespace: "bank", Name: "waves", Spec: pulumiv1.StackSpec{Stack: "dev", RolloutRef: &pulumiv1.RolloutReference{Name: "all"},
		Windows: []autov1alpha1.Window{{Policy: autov1alpha1.WindowAllow, Cron: "0 8 * * 1-4", Window: &metav1.Duration{Duration: time.Hour}}}}}
	g.Expect(as(g, "tenant").Create(t.Context(), stack)).To(Succeed())
	edit := func(user string, change func(*pulumiv1.Stack), options ...client.UpdateOption) error {
		edited := &pulumiv1.Stack{}
		if err := admin.Get(t.Context(), client.ObjectKeyFromObject(stack), edited); err != nil {
			return err
		}
		change(edited)
		return as(g, user).Update(t.Context(), edited, options...)
	}
	ways := map[string]func(*pulumiv1.Stack){
		"removed":           func(s *pulumiv1.Stack) { s.Spec.RolloutRef = nil },
		"another one":       func(s *pulumiv1.Stack) { s.Spec.RolloutRef.Name = "own" },
		"another namespace": func(s *pulumiv1.Stack) { s.Spec.RolloutRef.Namespace = "other" },
		"without windows":   func(s *pulumiv1.Stack) { s.Spec.Windows = nil },
		"another window":    func(s *pulumiv1.Stack) { s.Spec.Windows[0].Window.Duration = 2 * time.Hour },
		"more windows":      func(s *pulumiv1.Stack) { s.Spec.Windows = append(s.Spec.Windows, s.Spec.Windows[0]) },
		"released": func(s *pulumiv1.Stack) {
			metav1.SetMetaDataAnnotation(&s.ObjectMeta, pulumiv1.ReleaseRevisionAnnotation, "sha1:5287e5dc5287e5dc5287e5dc5287e5dc5287e5dc")
		},
	}
	g.Eventually(func() error { return edit("tenant", ways["removed"], client.DryRunAll) }, patience).Should(
		And(Satisfy(forbidden), MatchError(ContainSubstring(`needs the verb "bypass"`))))
	for name, change := range ways {
		g.Expect(edit("tenant", change)).To(Satisfy(forbidden), name)
	}
	g.Expect(edit("tenant", func(s *pulumiv1.Stack) { s.Spec.Refresh = true })).To(Succeed())
	g.Expect(edit("owner", ways["released"])).To(Succeed())
	g.Expect(edit("tenant", func(s *pulumiv1.Stack) { s.Spec.Refresh = false })).To(Succeed(), "it was released by another user")
	g.Expect(edit("tenant", func(s *pulumiv1.Stack) { s.Annotations = nil })).To(Succeed(), "it waits again")
	for _, name := range []string{"another one", "another window", "removed", "without windows"} {
		g.Expect(edit("owner", ways[name])).To(Succeed(), name)
	}
	g.Expect(edit("tenant", func(s *pulumiv1.Stack) { s.Spec.RolloutRef = &pulumiv1.RolloutReference{Name: "all"} })).To(Succeed(), "anybody may join")
}

func TestStatusOfAStackIsNotForThoseWhoEditIt(t *testing.T) {
	g := NewWithT(t)
	stack := &pulumiv1.Stack{Namespace: "bank", Name: "forged", Spec: pulumiv1.StackSpec{Stack: "dev"}}
	g.Expect(as(g, "tenant").Create(t.Context(), stack)).To(Succeed())
	stack.Status.Plan = &pulumiv1.PlanStatus{Name: "mine", State: pulumiv1.PlanApproved, Operation: pulumiv1.ApprovedUp}
	g.Expect(as(g, "tenant").Status().Update(t.Context(), stack.DeepCopy())).To(Satisfy(forbidden))
	g.Expect(as(g, "tenant").Update(t.Context(), stack)).To(Succeed())
	g.Expect(admin.Get(t.Context(), client.ObjectKeyFromObject(stack), stack)).To(Succeed())
	g.Expect(stack.Status.Plan).To(BeNil(), fmt.Sprintf("%v", stack.Status.Plan))
}

// Whoever may create and edit Updates must not make one that its Stack takes for its own, see internal/controller/stack.isTrusted for the other half.
func TestOnlyTheControllerOfAStackMakesAnUpdateOneOfTheStack(t *testing.T) {
	g := NewWithT(t)
	stack := &pulumiv1.Stack{Namespace: "bank", GenerateName: "owner-", Spec: pulumiv1.StackSpec{Stack: "dev"}}
	g.Expect(admin.Create(t.Context(), stack)).To(Succeed())
	owners := []metav1.OwnerReference{{APIVersion: "pulumi.com/v1", Kind: "Stack", Name: stack.Name, UID: stack.UID}}
	update := func(owners []metav1.OwnerReference) *autov1alpha1.Update {
		return &autov1alpha1.Update{Namespace: "bank", GenerateName: "u-", OwnerReferences: owners,
			Spec: autov1alpha1.UpdateSpec{WorkspaceName: "app", StackName: "dev", Type: autov1alpha1.UpdateTypePreview}}
	}
	tenant := as(g, "tenant")
	// A policy takes effect a moment after its creation.
	g.Eventually(func() error { return tenant.Create(t.Context(), update(owners)) }, patience).Should(
		And(Satisfy(forbidden), MatchError(ContainSubstring("only the controller of a Stack makes an Update one of the Stack"))))
	own := update(nil)
	g.Expect(tenant.Create(t.Context(), own)).To(Succeed(), "an Update without such an owner")
	patchMetadata := func(as client.Client, object *autov1alpha1.Update, change func(*autov1alpha1.Update)) error {
		changed := object.DeepCopy()
		change(changed)
		return as.Patch(t.Context(), changed, client.MergeFrom(object))
	}
	g.Expect(patchMetadata(tenant, own, func(u *autov1alpha1.Update) { u.OwnerReferences = owners })).To(Satisfy(forbidden))
	for _, kind := range []metav1.OwnerReference{
		{APIVersion: "example.com/v1", Kind: "Stack"}, {APIVersion: "pulumi.com.example.com/v1", Kind: "Stack"}, {APIVersion: "pulumi.com/v1", Kind: "Program"},
	} {
		kind.Name, kind.UID = stack.Name, stack.UID
		other := update([]metav1.OwnerReference{kind})
		g.Expect(tenant.Create(t.Context(), other)).To(Succeed())
		g.Expect(stack.Owns(other)).To(BeFalse(), "what the policy lets through is not one of the Stack: %v", kind)
	}
	g.Expect(patchMetadata(tenant, own, func(u *autov1alpha1.Update) {
		u.Annotations = map[string]string{pulumiv1.DriftUpdateAnnotation: "x"}
	})).To(Succeed(), "annotations mean nothing without an owner")

	of := update(owners)
	of.Annotations = map[string]string{pulumiv1.SpecDigestAnnotation: "a"}
	g.Expect(admin.Create(t.Context(), of)).To(Succeed(), "whoever may write the status of the Stack")
	for _, name := range []string{
		pulumiv1.StackGenerationAnnotation, pulumiv1.SpecDigestAnnotation, pulumiv1.ContentDigestAnnotation, pulumiv1.ReferencesDigestAnnotation,
		pulumiv1.PlanCauseAnnotation, pulumiv1.DriftUpdateAnnotation,
	} {
		g.Expect(patchMetadata(tenant, of, func(u *autov1alpha1.Update) { u.Annotations = map[string]string{name: "forged"} })).To(Satisfy(forbidden), name)
	}
	g.Expect(patchMetadata(tenant, of, func(u *autov1alpha1.Update) { u.Annotations = nil })).To(Satisfy(forbidden))
	g.Expect(patchMetadata(tenant, of, func(u *autov1alpha1.Update) {
		u.Annotations[pulumiv1.CancelUpdateAnnotation] = "true"
	})).To(Succeed(), "a request")
	g.Expect(patchMetadata(tenant, of, func(u *autov1alpha1.Update) { u.OwnerReferences[0].Name = "other" })).To(Satisfy(forbidden))
	g.Expect(patchMetadata(tenant, of, func(u *autov1alpha1.Update) { u.OwnerReferences = nil })).To(Succeed(), "as the garbage collector does")
}
