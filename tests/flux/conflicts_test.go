package flux_test

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	"github.com/fluxcd/pkg/apis/meta"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/stage/scene"
	"github.com/stack-controller/stack-controller/tests/statuscheck"
)

// shared is a Stack of which others want fields too.
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

// others is what another field manager applies: a field that the Kustomization does not have, and perhaps one that it has.
const others = `
apiVersion: pulumi.com/v1
kind: Stack
metadata: {name: contested, labels: {team: network}}
spec:
  retryInterval: 3m
`

func TestFieldsOfAStackHaveOneOwnerAndAreNotFoughtFor(t *testing.T) {
	p := begin(t, "contested")
	files := scene.Program(p.Name, "config:", "  size: string", "outputs:", "  x: ${size}")
	files["deploy/stack.yaml"] = p.fill(shared)
	p.repository(p.Name, files)
	p.apply(sharing)
	p.await(kustomizations, p.Name, status.CurrentStatus)
	p.Expect(scene.Output(p.stack(p.Name), "x")).To(Equal(`"small"`))
	applied := func(manifest string, options ...string) (string, error) {
		return system.ControlPlane.KubectlInput(p.Context(), p.fill(manifest),
			append([]string{"apply", "--server-side", "--field-manager=tenant", "--namespace=" + p.Name, "--filename=-"}, options...)...)
	}

	// Fields that only the other one has stay. Each change of the specification is one update, see the specification of Stacks.
	_, err := applied(others)
	p.Succeed(err)
	p.same(2, 2)

	// For those of the Kustomization the API server says who has them.
	_, err = applied(others + "  config: {contested:size: large}\n")
	p.Expect(err).To(MatchError(And(ContainSubstring(`conflict with "kustomize-controller": .spec.config.contested:size`))))
	p.same(2, 2)

	// By force it gets them until the Kustomization is reconciled: one update there, and one back.
	_, err = applied(others+"  config: {contested:size: large}\n", "--force-conflicts")
	p.Succeed(err)
	p.AwaitStack(p.Name, scene.Showing(`"large"`))
	p.reconcile(kustomizations, p.Name)
	p.await(kustomizations, p.Name, status.CurrentStatus)
	p.AwaitStack(p.Name, scene.Showing(`"small"`))
	p.same(4, 4)

	// What kubectl writes is undone, an annotation that asked for an update too. That is not one more request.
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
	p.same(6, 6) // that it was suspended is one update more
	p.Expect(stack.Labels).To(HaveKeyWithValue("team", "network"))
	p.Expect(stack.Spec.RetryInterval.Minutes()).To(BeEquivalentTo(3))

	// The command line has a field manager of its own, so that a Stack stays suspended. A Kustomization that waits would wait for it.
	p.apply(strings.Replace(sharing, "wait: true", "wait: false", 1))
	kubectl("patch", "stack", p.Name, "--type=merge", `--patch={"spec": {"suspend": true}}`, "--field-manager=flux-pulumi")
	p.reconcile(kustomizations, p.Name)
	p.await(kustomizations, p.Name, status.CurrentStatus)
	p.Expect(p.stack(p.Name).Spec.Suspend).To(BeTrue())
}

// same reconciles the Kustomization, and expects that nobody writes the Stack any more, which has this generation and so many updates.
func (p *play) same(generation, updates int) {
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
