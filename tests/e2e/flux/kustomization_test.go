package flux_test

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	"github.com/fluxcd/pkg/apis/meta"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/gitserver"
	"github.com/stack-controller/stack-controller/tests/framework/statuscheck"
	"github.com/stack-controller/stack-controller/tests/framework/systemtest"
)

// delivery is applied by a Kustomization: a Stack and everything that it needs. The Kustomization replaces ${environment}.
const delivery = `
apiVersion: v1
kind: ServiceAccount
metadata: {name: deployer, annotations: {kustomize.toolkit.fluxcd.io/prune: disabled}}
---
apiVersion: source.toolkit.fluxcd.io/v1
kind: GitRepository
metadata: {name: network-source}
spec: {interval: 1h, url: URL/kustomized-network, ref: {branch: main}}
---
apiVersion: pulumi.com/v1
kind: Stack
metadata: {name: network}
spec:
  stack: ${environment}
  backend: BACKEND
  fluxSource: {sourceRef: {kind: GitRepository, name: network-source}}
  envRefs:
    PULUMI_CONFIG_PASSPHRASE: {type: Secret, secret: {name: pulumi, key: passphrase}}
  destroyOnFinalize: true
  updateTemplate: {spec: {remove: true}}
`

// dependents is applied by another Kustomization. One of the Programs escapes the expressions that are not for the Kustomization, and the
// other one turns the substitution off.
const dependents = `
apiVersion: pulumi.com/v1
kind: Program
metadata: {name: escaped}
program:
  variables: {place: "in $${pulumi.stack}"}
  outputs: {x: "${environment}: $${place}"}
---
apiVersion: pulumi.com/v1
kind: Program
metadata: {name: untouched, annotations: {kustomize.toolkit.fluxcd.io/substitute: disabled}}
program:
  variables: {place: "in ${pulumi.stack}"}
  outputs: {x: "${place}"}
---
apiVersion: pulumi.com/v1
kind: Stack
metadata: {name: escaped}
spec:
  stack: production
  backend: BACKEND
  programRef: {name: escaped}
  dependsOn: [{name: network}]
  envRefs:
    PULUMI_CONFIG_PASSPHRASE: {type: Secret, secret: {name: pulumi, key: passphrase}}
---
apiVersion: pulumi.com/v1
kind: Stack
metadata: {name: untouched}
spec:
  stack: production
  backend: BACKEND
  programRef: {name: untouched}
  envRefs:
    PULUMI_CONFIG_PASSPHRASE: {type: Secret, secret: {name: pulumi, key: passphrase}}
`

// delivered has the two Kustomizations. The test does not wait as long as their timeout.
const delivered = `
apiVersion: kustomize.toolkit.fluxcd.io/v1
kind: Kustomization
metadata: {name: delivery}
spec:
  interval: 1h
  retryInterval: 1h
  timeout: 10m
  path: ./delivery
  prune: true
  wait: true
  deletionPolicy: WaitForTermination
  targetNamespace: NAMESPACE
  sourceRef: {kind: GitRepository, name: kustomized}
  decryption: {provider: sops, secretRef: {name: sops-age}}
  postBuild: {substitute: {environment: staging}}
---
apiVersion: kustomize.toolkit.fluxcd.io/v1
kind: Kustomization
metadata: {name: dependents}
spec:
  interval: 1h
  timeout: 10m
  path: ./dependents
  prune: true
  wait: true
  targetNamespace: NAMESPACE
  dependsOn: [{name: delivery}]
  sourceRef: {kind: GitRepository, name: kustomized}
  postBuild: {substitute: {environment: staging}}
  healthCheckExprs:
    - apiVersion: pulumi.com/v1
      kind: Stack
      current: status.conditions.exists(c, c.type == 'Ready' && c.status == 'True') && status.lastUpdate.state == 'succeeded'
      failed: status.conditions.exists(c, c.type == 'Stalled' && c.status == 'True')
`

// operations waits for an Update, with the expressions of the guide.
const operations = `
apiVersion: kustomize.toolkit.fluxcd.io/v1
kind: Kustomization
metadata: {name: operations}
spec:
  interval: 1h
  retryInterval: 1h
  timeout: 10m
  path: ./operations
  prune: true
  wait: true
  targetNamespace: NAMESPACE
  sourceRef: {kind: GitRepository, name: kustomized}
`

func TestKustomizationIsReadyWhenItsStackIsAndFailsAndEndsWithIt(t *testing.T) {
	p := begin(t, "kustomized")
	p.Succeed(system.Client.Delete(p.Context(), &corev1.Secret{ObjectMeta: p.Meta("pulumi")})) // the Kustomization creates it
	source, _, err := system.Git.Create("kustomized-network", systemtest.Returning("network", 1))
	p.Succeed(err)
	fleet := p.repository(p.Name, p.filled(gitserver.Files{
		"delivery/stack.yaml": delivery, "delivery/secret.yaml": p.testdata("secret.enc.yaml"), "dependents/stacks.yaml": dependents,
	}))
	p.Create(p.Secret("sops-age", map[string]string{"identity.agekey": p.testdata("keys.agekey")}))
	p.apply(delivered)

	p.await(kustomizations, "delivery", status.CurrentStatus)
	network := p.stack("network")
	p.Expect(statuscheck.Ready("")(network)).To(BeTrue(), "the Kustomization was ready before the Stack: %v", network.Status.Conditions)
	p.Expect(systemtest.Output(network, "x")).To(Equal("1"))
	p.Expect(p.HasState("network", "staging")).To(BeTrue())

	p.await(kustomizations, "dependents", status.CurrentStatus)
	for name, want := range map[string]string{"escaped": `"staging: in production"`, "untouched": `"in production"`} {
		stack := p.stack(name)
		p.Expect(statuscheck.Ready("")(stack)).To(BeTrue(), name)
		p.Expect(systemtest.Output(stack, "x")).To(Equal(want))
	}

	// Neither of the two controllers reverts what the other one writes.
	before := p.stack("network")
	for range 3 {
		p.reconcile(kustomizations, "delivery")
	}
	p.await(kustomizations, "delivery", status.CurrentStatus)
	after := p.stack("network")
	p.Expect(after.ResourceVersion).To(Equal(before.ResourceVersion), "somebody wrote: %v", after.ManagedFields)
	p.Expect(after.Generation).To(BeEquivalentTo(1))
	p.Expect(p.Updates()).To(HaveLen(3), "one for each Stack")

	p.waitsForUpdates(fleet)
	p.isKnownToFlux(source)
	p.failsFast(fleet)
	p.endsWithItsStack()
}

func (p *fixture) stack(name string) *pulumiv1.Stack {
	p.Helper()
	stack := &pulumiv1.Stack{}
	p.Get(name, stack)
	p.Expect(statuscheck.Lint(p.Context(), stack)).To(Succeed())
	return stack
}

// waitsForUpdates lets a Kustomization wait for an Update that succeeds, and for one that fails.
func (p *fixture) waitsForUpdates(fleet *gitserver.Repository) {
	p.Helper()
	const beginning = "  healthCheckExprs:\n    - apiVersion: auto.pulumi.com/v1alpha1\n      kind: Update\n"
	_, expressions, found := strings.Cut(p.document("guides/kustomizations.md"), beginning)
	p.Expect(found).To(BeTrue())
	expressions, _, _ = strings.Cut(expressions, "```\n")
	run := func(name, stack string) {
		p.commit(fleet, p.Name, gitserver.Files{"operations/update.yaml": "{apiVersion: auto.pulumi.com/v1alpha1, kind: Update, metadata: {name: " + name +
			"}, spec: {workspaceName: untouched, type: refresh, requireStack: true, stackName: " + stack + "}}\n"})
	}
	run("works", "production")
	p.apply(operations + beginning + expressions)
	p.await(kustomizations, "operations", status.CurrentStatus)
	update := &autov1alpha1.Update{}
	p.Get("works", update)
	p.Expect(update.Status.State).To(Equal(autov1alpha1.UpdateStateSucceeded), update.Status.Message)

	run("fails", "elsewhere")
	var message string
	p.Eventually(func() string {
		state, reason, text := ready(p.object(kustomizations, "operations"))
		message = text
		return state + " " + reason
	}).Should(Equal("False HealthCheckFailed"))
	p.Expect(message).To(ContainSubstring("Update/" + p.Name + "/fails"))
	p.Succeed(system.Client.Delete(p.Context(), p.object(kustomizations, "operations")))
}

// failsFast breaks the specification of the Stack, and repairs it.
func (p *fixture) failsFast(fleet *gitserver.Repository) {
	p.Helper()
	broken := strings.Replace(delivery, "name: network-source}}", "name: network-source, namespace: elsewhere}}", 1)
	p.commit(fleet, p.Name, p.filled(gitserver.Files{"delivery/stack.yaml": broken}))
	var message string
	p.Eventually(func() string {
		state, reason, text := ready(p.object(kustomizations, "delivery"))
		message = text
		return state + " " + reason
	}).Should(Equal("False HealthCheckFailed"))
	p.Expect(message).To(ContainSubstring("Stack/" + p.Name + "/network"))
	p.Expect(statuscheck.NotReady("AccessDenied")(p.stack("network"))).To(BeTrue())
	p.commit(fleet, p.Name, p.filled(gitserver.Files{"delivery/stack.yaml": delivery}))
	p.await(kustomizations, "delivery", status.CurrentStatus)
	p.Expect(statuscheck.Ready("")(p.stack("network"))).To(BeTrue())
}

// endsWithItsStack deletes the Kustomization, which deletes all its objects at the same time and waits for the finalizer of the Stack.
func (p *fixture) endsWithItsStack() {
	p.Helper()
	kustomization := p.object(kustomizations, "delivery")
	p.Expect(system.Client.Delete(p.Context(), kustomization)).To(Succeed())
	p.Eventually(func(g Gomega) {
		err := system.Client.Get(p.Context(), p.Key("delivery"), kustomization)
		left := &unstructured.Unstructured{}
		left.SetGroupVersionKind(pulumiv1.GroupVersion.WithKind(pulumiv1.StackKind))
		stackErr := system.Client.Get(p.Context(), p.Key("network"), left)
		if apierrors.IsNotFound(err) {
			p.Expect(apierrors.IsNotFound(stackErr)).To(BeTrue(), "the Kustomization did not wait for the Stack: %v", left.Object["status"])
		}
		g.Expect(apierrors.IsNotFound(err)).To(BeTrue())
	}).Should(Succeed())
	p.Expect(p.HasState("network", "staging")).To(BeFalse(), "it was destroyed")
}

// shared is a Stack in which other field managers set fields, too.
const shared = `
apiVersion: pulumi.com/v1
kind: Stack
metadata: {name: contested}
spec:
  stack: dev
  backend: BACKEND
  fluxSource: {sourceRef: {kind: GitRepository, name: contested}}
  envRefs:
    PULUMI_CONFIG_PASSPHRASE: {type: Secret, secret: {name: pulumi, key: passphrase}}
  config: {contested:size: small}
`

const sharing = `
apiVersion: kustomize.toolkit.fluxcd.io/v1
kind: Kustomization
metadata: {name: contested}
spec:
  interval: 1h
  timeout: 10m
  path: ./deploy
  prune: true
  wait: true
  targetNamespace: NAMESPACE
  sourceRef: {kind: GitRepository, name: contested}
`

// others is applied by another field manager: a field that the Kustomization does not have, and in some steps also one that it has.
const others = `
apiVersion: pulumi.com/v1
kind: Stack
metadata: {name: contested, labels: {team: network}}
spec:
  retryInterval: 3m
`

func TestFieldsOfAStackHaveOneOwnerAndAreNotFoughtFor(t *testing.T) {
	p := begin(t, "contested")
	files := systemtest.Program(p.Name, "config:", "  size: string", "outputs:", "  x: ${size}")
	files["deploy/stack.yaml"] = p.fill(shared)
	p.repository(p.Name, files)
	p.apply(sharing)
	p.await(kustomizations, p.Name, status.CurrentStatus)
	p.Expect(systemtest.Output(p.stack(p.Name), "x")).To(Equal(`"small"`))
	applied := func(manifest string, options ...string) (string, error) {
		return system.ControlPlane.KubectlInput(p.Context(), p.fill(manifest),
			append([]string{"apply", "--server-side", "--field-manager=tenant", "--namespace=" + p.Name, "--filename=-"}, options...)...)
	}

	// Fields that only the other field manager has stay. Each change of the specification is one update, see the specification of Stacks.
	_, err := applied(others)
	p.Succeed(err)
	p.same(2, 2)

	// For a field of the Kustomization, the API server reports a conflict with its owner.
	_, err = applied(others + "  config: {contested:size: large}\n")
	p.Expect(err).To(MatchError(And(ContainSubstring(`conflict with "kustomize-controller": .spec.config.contested:size`))))
	p.same(2, 2)

	// With force, the other field manager gets the field until the Kustomization is reconciled. That is one update for its value, and one
	// for the value of the Kustomization.
	_, err = applied(others+"  config: {contested:size: large}\n", "--force-conflicts")
	p.Succeed(err)
	p.AwaitStack(p.Name, systemtest.Showing(`"large"`))
	p.reconcile(kustomizations, p.Name)
	p.await(kustomizations, p.Name, status.CurrentStatus)
	p.AwaitStack(p.Name, systemtest.Showing(`"small"`))
	p.same(4, 4)

	// The Kustomization reverts what kubectl writes, including an annotation that requested an update. Its removal is not another request.
	kubectl := func(args ...string) {
		_, err := system.ControlPlane.Kubectl(p.Context(), append([]string{"--namespace=" + p.Name}, args...)...)
		p.Succeed(err)
	}
	kubectl("annotate", "stack", p.Name, meta.ReconcileRequestAnnotation+"=by-hand")
	p.AwaitStack(p.Name, func(stack *pulumiv1.Stack) bool {
		return statuscheck.Ready("")(stack) && stack.Status.LastHandledReconcileAt == "by-hand"
	})
	kubectl("patch", "stack", p.Name, "--type=merge", `--patch={"spec": {"suspend": true}}`)
	p.reconcile(kustomizations, p.Name)
	p.await(kustomizations, p.Name, status.CurrentStatus)
	stack := p.stack(p.Name)
	p.Expect(stack.Annotations).NotTo(HaveKey(meta.ReconcileRequestAnnotation))
	p.Expect(stack.Spec.Suspend).To(BeFalse())
	p.same(6, 6) // the suspended generation causes one more update
	p.Expect(stack.Labels).To(HaveKeyWithValue("team", "network"))
	p.Expect(stack.Spec.RetryInterval.Minutes()).To(BeEquivalentTo(3))

	// The command line has its own field manager, so that a Stack stays suspended.
	p.apply(strings.Replace(sharing, "wait: true", "wait: false", 1))
	kubectl("patch", "stack", p.Name, "--type=merge", `--patch={"spec": {"suspend": true}}`, "--field-manager=flux-pulumi")
	p.reconcile(kustomizations, p.Name)
	p.await(kustomizations, p.Name, status.CurrentStatus)
	p.Expect(p.stack(p.Name).Spec.Suspend).To(BeTrue())
}

// same reconciles the Kustomization, and expects that the Stack does not change and has this generation and this number of updates.
func (p *fixture) same(generation, updates int) {
	p.Helper()
	p.AwaitStack(p.Name, func(stack *pulumiv1.Stack) bool {
		return statuscheck.Ready("")(stack) && stack.Status.ObservedGeneration == int64(generation)
	})
	before := p.stack(p.Name)
	for range 2 {
		p.reconcile(kustomizations, p.Name)
	}
	p.await(kustomizations, p.Name, status.CurrentStatus)
	after := p.stack(p.Name)
	p.Expect(after.ResourceVersion).To(Equal(before.ResourceVersion), "somebody wrote: %v", after.ManagedFields)
	p.Expect(after.Generation).To(BeEquivalentTo(generation))
	p.Expect(p.Updates()).To(HaveLen(updates))
}
