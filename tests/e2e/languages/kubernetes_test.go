package languages_test

import (
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/runtime/conditions"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// Drift of resources of the real provider for Kubernetes is found, said by its path, corrected, and approved as a plan.
func TestProgramWithTheProviderForKubernetes(t *testing.T) {
	t.Parallel()
	g, ctx := NewWithT(t), t.Context()
	const name = "kubernetes"
	app, stack := provide(t, name, project(t, "python"))
	stack.Spec.FluxSource = nil
	stack.Spec.ProgramRef = &pulumiv1.ProgramReference{Name: name}
	stack.Spec.DestroyOnFinalize = true
	stack.Spec.Drift = &pulumiv1.DriftSpec{Mode: pulumiv1.DriftModeDetect, Interval: metav1.Duration{Duration: time.Hour}}
	applyProgram(t, name, `
  settings:
    type: kubernetes:core/v1:ConfigMap
    properties: {metadata: {name: settings}, data: {hello: world, size: small}}
  account:
    type: kubernetes:core/v1:ServiceAccount
    properties: {metadata: {name: account}}
`)
	g.Expect(system.Client.Create(ctx, stack)).To(Succeed())
	ready := waitReady(t, app)
	g.Expect(ready.Status.LastUpdate.ResourceChanges).To(HaveKeyWithValue("create", BeEquivalentTo(3)))
	settings := &corev1.ConfigMap{Namespace: name, Name: "settings"}
	account := &corev1.ServiceAccount{Namespace: name, Name: "account"}
	edit := func() {
		g.Expect(system.Client.Get(ctx, client.ObjectKeyFromObject(settings), settings)).To(Succeed())
		settings.Data["hello"] = "theirs"
		g.Expect(system.Client.Update(ctx, settings)).To(Succeed())
		g.Expect(system.Client.Delete(ctx, account.DeepCopy())).To(Succeed())
	}
	correct := func(g Gomega) {
		g.Expect(system.Client.Get(ctx, client.ObjectKeyFromObject(settings), settings)).To(Succeed())
		g.Expect(settings.Data).To(HaveKeyWithValue("hello", "world"))
		g.Expect(system.Client.Get(ctx, client.ObjectKeyFromObject(account), account.DeepCopy())).To(Succeed())
	}

	edit()
	check := func(token string, state metav1.ConditionStatus) *pulumiv1.Stack {
		change(t, app.Key(), func(stack *pulumiv1.Stack) {
			metav1.SetMetaDataAnnotation(&stack.ObjectMeta, pulumiv1.DriftCheckAnnotation, token)
		})
		return await(t, app.Key(), func(g Gomega, stack *pulumiv1.Stack) {
			g.Expect(stack.Status.Drift).NotTo(BeNil())
			g.Expect(stack.Status.Drift.LastHandledCheckAt).To(Equal(token))
			g.Expect(conditions.Get(stack, pulumiv1.DriftedCondition)).To(HaveField("Status", state))
		})
	}
	drifted := check("first", metav1.ConditionTrue)
	message := conditions.GetMessage(drifted, pulumiv1.DriftedCondition)
	t.Log(message)
	g.Expect(message).To(And(ContainSubstring("settings (data.hello)"), ContainSubstring("account")))

	// A correction changes what drifted.
	change(t, app.Key(), func(stack *pulumiv1.Stack) { stack.Spec.Drift.Mode = pulumiv1.DriftModeCorrect })
	await(t, app.Key(), func(g Gomega, _ *pulumiv1.Stack) { correct(g) })
	check("second", metav1.ConditionFalse)

	// With approvals, the correction is a plan.
	change(t, app.Key(), func(stack *pulumiv1.Stack) { stack.Spec.Approval = &pulumiv1.ApprovalPolicy{} })
	waitReady(t, app)
	edit()
	change(t, app.Key(), func(stack *pulumiv1.Stack) {
		metav1.SetMetaDataAnnotation(&stack.ObjectMeta, pulumiv1.DriftCheckAnnotation, "third")
	})
	planned := awaitPlan(t, app.Key(), "")
	g.Expect(planned.Status.Plan.Operation).To(Equal(pulumiv1.ApprovedDriftCorrection))
	g.Expect(system.Client.Get(ctx, client.ObjectKeyFromObject(settings), settings)).To(Succeed())
	g.Expect(settings.Data).To(HaveKeyWithValue("hello", "theirs"))
	approve(t, planned)
	await(t, app.Key(), func(g Gomega, stack *pulumiv1.Stack) {
		correct(g)
		g.Expect(stack.Status.Plan.State).To(Equal(pulumiv1.PlanApplied))
	})
}

// A refresh, and an update of targets alone.
func TestTargetsAndRefreshWithTheProviderForKubernetes(t *testing.T) {
	t.Parallel()
	g, ctx := NewWithT(t), t.Context()
	const name = "targets"
	app, stack := provide(t, name, project(t, "python"))
	stack.Spec.FluxSource, stack.Spec.ProgramRef = nil, &pulumiv1.ProgramReference{Name: name}
	stack.Spec.Refresh = true
	of := func(size string) {
		applyProgram(t, name, strings.ReplaceAll(`
  one:
    type: kubernetes:core/v1:ConfigMap
    properties: {metadata: {name: one}, data: {size: SIZE}}
  other:
    type: kubernetes:core/v1:ConfigMap
    properties: {metadata: {name: other}, data: {size: SIZE}}
`, "SIZE", size))
	}
	of("small")
	g.Expect(system.Client.Create(ctx, stack)).To(Succeed())
	waitReady(t, app)
	size := func(g Gomega, name string) string {
		found := &corev1.ConfigMap{}
		g.Expect(system.Client.Get(ctx, client.ObjectKey{Namespace: app.Namespace, Name: name}, found)).To(Succeed())
		return found.Data["size"]
	}

	change(t, app.Key(), func(stack *pulumiv1.Stack) {
		stack.Spec.Targets = []string{"urn:pulumi:dev::" + name + "::kubernetes:core/v1:ConfigMap::one"}
	})
	waitReady(t, app)
	of("large")
	await(t, app.Key(), func(g Gomega, stack *pulumiv1.Stack) { g.Expect(size(g, "one")).To(Equal("large")) })
	waitReady(t, app)
	g.Expect(size(g, "other")).To(Equal("small"))

	// What was changed outside of Pulumi is found by the refresh of the next update.
	change(t, app.Key(), func(stack *pulumiv1.Stack) { stack.Spec.Targets = nil })
	await(t, app.Key(), func(g Gomega, stack *pulumiv1.Stack) { g.Expect(size(g, "other")).To(Equal("large")) })
	waitReady(t, app)
	other := &corev1.ConfigMap{Namespace: name, Name: "other"}
	g.Expect(system.Client.Delete(ctx, other)).To(Succeed())
	change(t, app.Key(), func(stack *pulumiv1.Stack) {
		metav1.SetMetaDataAnnotation(&stack.ObjectMeta, pulumiv1.ReconcileRequestAnnotation, "again")
	})
	await(t, app.Key(), func(g Gomega, stack *pulumiv1.Stack) { g.Expect(size(g, "other")).To(Equal("large")) })
}

// A Deployment that never becomes ready fails the update with what the provider knows about it, until its timeout.
func TestDeploymentThatIsNeverReady(t *testing.T) {
	t.Parallel()
	g, ctx := NewWithT(t), t.Context()
	const name = "never-ready"
	app, stack := provide(t, name, project(t, "python"))
	stack.Spec.FluxSource, stack.Spec.ProgramRef = nil, &pulumiv1.ProgramReference{Name: name}
	stack.Spec.RetryInterval = &metav1.Duration{Duration: time.Hour}
	applyProgram(t, name, `
  web:
    type: kubernetes:apps/v1:Deployment
    options: {customTimeouts: {create: 45s}}
    properties:
      metadata: {name: web}
      spec:
        selector: {matchLabels: {app: web}}
        template:
          metadata: {labels: {app: web}}
          spec:
            securityContext: {runAsNonRoot: true, runAsUser: 1000, seccompProfile: {type: RuntimeDefault}}
            containers:
              - name: web
                image: stack-controller.test/no-such-image:1
                imagePullPolicy: Never
                securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
`)
	g.Expect(system.Client.Create(ctx, stack)).To(Succeed())
	message := awaitFailure(t, app.Key())
	t.Log(message)
	g.Expect(message).To(ContainSubstring("no-such-image"))
	g.Expect(system.Client.Get(ctx, client.ObjectKey{Namespace: name, Name: "web"}, &appsv1.Deployment{})).To(Succeed())
}

// applyProgram creates or changes the Program with the name of the namespace, whose resources are the YAML.
func applyProgram(t *testing.T, namespace, resources string) {
	t.Helper()
	manifest := "apiVersion: pulumi.com/v1\nkind: Program\nmetadata: {name: " + namespace + ", namespace: " + namespace + "}\nprogram:\n  resources:" +
		strings.ReplaceAll(resources, "\n", "\n  ")
	_, err := system.Cluster.KubectlInput(t.Context(), manifest, "apply", "--filename=-")
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
}

// change edits a Stack.
func change(t *testing.T, key client.ObjectKey, edit func(*pulumiv1.Stack)) {
	t.Helper()
	await(t, key, func(g Gomega, stack *pulumiv1.Stack) {
		edit(stack)
		g.Expect(system.Client.Update(t.Context(), stack)).To(Succeed())
	})
}
