package tenancy_test

import (
	"context"
	"fmt"
	"time"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// pressTime is how long an attack goes on that only costs time.
const pressTime = 20 * time.Second

// crowdAttacks want all of the controller for themselves.
var crowdAttacks = []attack{
	{
		name: "stacks-without-number", promise: "fairness", in: crowdName,
		does: "creates a thousand Stacks in one namespace, whose sources do not exist",
		sees: "Each Stack is reconciled. Stacks in other namespaces do not wait for them.",
		run: func(a *attacker) {
			a.Expect(a.means.Crowd(a.ctx, *manyStacks)).To(Succeed())
			last := &pulumiv1.Stack{ObjectMeta: inNamespace(crowdName, fmt.Sprint("crowd-", *manyStacks-1))}
			await(a, last, func(g Gomega, stack *pulumiv1.Stack) { g.Expect(stack.Status.Conditions).NotTo(BeEmpty()) })
		},
	},
	{
		name: "requests-without-an-end", promise: "fairness", in: crowdName,
		does: "requests reconciliations of a Stack as fast as the API server allows",
		sees: "The Stack is reconciled at a limited rate.",
		run: func(a *attacker) {
			ctx, cancel := context.WithTimeout(a.ctx, pressTime)
			defer cancel()
			a.Expect(a.means.Request(ctx, a.createStack(fromProgram("none")))).To(Succeed())
		},
	},
	{
		name: "source-that-alternates", promise: "fairness", in: crowdName,
		does: "switches the status of an ExternalArtifact between two artifacts as fast as the API server allows",
		sees: "The Stack is reconciled at a limited rate.",
		run: func(a *attacker) {
			ctx, cancel := context.WithTimeout(a.ctx, pressTime)
			defer cancel()
			a.createStack(fromFlux(sourcev1.ExternalArtifactKind, "", a.name))
			a.Expect(a.means.Alternate(ctx, a.name)).To(Succeed())
		},
	},
	{
		name: "git-tarpits", promise: "fairness", in: crowdName,
		does: "follows thirty git repositories on a server that sends one byte per second",
		sees: "`SourceUnavailable` after a timeout. The repositories of other tenants are checked meanwhile.",
		run: func(a *attacker) {
			a.Expect(a.means.GitTarpits(a.ctx, a.name, 30)).To(Succeed())
		},
	},
	{
		name: "git-references-without-an-end", promise: "sizes", in: agentsName,
		does: "follows ten git repositories with an endless list of references",
		sees: "`SourceUnavailable` or another error. The controller matches references while it reads them, and limits the size of the answer.",
		run: func(a *attacker) {
			a.Expect(a.means.GitReferences(a.ctx, a.name, 10)).To(Succeed())
			a.expectRefused(&pulumiv1.Stack{ObjectMeta: inNamespace(a.means.Namespace, a.name+"-9")}, refusal{})
		},
	},
	{
		name: "artifact-tarpits", promise: "fairness", in: crowdName,
		does: "publishes ten ExternalArtifacts on a web server that sends one byte per second",
		sees: "The download is rejected, or stopped because it is too slow. Other tenants have their own share of workers.",
		run: func(a *attacker) {
			a.Expect(a.means.ArtifactTarpits(a.ctx, a.name, 10)).To(Succeed())
			last := &pulumiv1.Stack{ObjectMeta: inNamespace(a.means.Namespace, a.name+"-9")}
			await(a, last, func(g Gomega, stack *pulumiv1.Stack) { g.Expect(stack.Status.Conditions).NotTo(BeEmpty()) })
		},
	},
	{
		name: "owner-of-everything", promise: "fairness", in: crowdName,
		does: "creates and deletes Stacks that depend on each other, as fast as possible",
		sees: "The Stacks are created and deleted. Other tenants are not affected.",
		run: func(a *attacker) {
			for i := range 40 {
				stack := a.newStack(fromProgram("none"))
				stack.Name += fmt.Sprint("-", i)
				stack.Spec.Prerequisites = []pulumiv1.PrerequisiteRef{{Name: fmt.Sprint(a.name, "-", i+1)}}
				stack.Spec.DependsOn = []meta.DependencyReference{{Name: fmt.Sprint(a.name, "-", (i+39)%40)}}
				a.create(stack)
				a.Expect(client.IgnoreNotFound(a.client.Delete(a.ctx, stack))).To(Succeed())
			}
		},
	},
}
