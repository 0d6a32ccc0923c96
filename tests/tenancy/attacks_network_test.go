package tenancy_test

import (
	"fmt"
	"strings"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// pageCanary is in every page of the attacker's web server.
const pageCanary = "page-canary-55e1"

// networkAttacks have the controller, which reaches what a tenant does not, connect to an address.
var networkAttacks = []attack{
	{
		name: "git-metadata-service", promise: "network",
		does: "uses the metadata service of a cloud, in several notations, as a git repository",
		sees: "The address is rejected, and no request is sent.",
		run: func(a *attacker) {
			a.expectURLsRefused("http://169.254.169.254/latest/meta-data", "http://[fd00:ec2::254]/latest", "http://[::ffff:169.254.169.254]/latest",
				"http://0xa9fea9fe/latest", "http://2852039166/latest")
		},
	},
	{
		name: "git-loopback", promise: "network",
		does: "uses the controller's own ports as a git repository",
		sees: "The address is rejected. No message contains any metrics.",
		run: func(a *attacker) {
			a.expectURLsRefused("http://127.0.0.1:8080/metrics", "http://localhost:8080/metrics", "http://[::1]:9440/healthz", "http://0.0.0.0:8080/metrics",
				"ssh://git@127.0.0.1:22/x.git")
		},
	},
	{
		name: "git-files", promise: "network",
		does: "uses a file, and unsupported schemes, as a git repository",
		sees: "`SpecInvalid`, Stalled",
		run: func(a *attacker) {
			for i, url := range []string{"file:///var/run/secrets", "/data/artifacts", "git://" + webHost + "/x.git", "ext::sh -c id"} {
				a.expectRefused(a.numbered(i, a.newStack(fromGit(url))), refusal{reasons: []string{pulumiv1.SpecInvalidReason}, stalled: true})
			}
		},
	},
	{
		name: "git-redirect", promise: "network",
		does: "redirects from their own git server to the metadata service, to source-controller and to the controller's metrics",
		sees: "The Stack waits. No message contains any of the answers.",
		run: func(a *attacker) {
			a.expectURLsRefused("http://"+webHost+"/redirect/169.254.169.254/x.git", "http://"+webHost+"/redirect/127.0.0.1:8080/metrics",
				"http://"+webHost+"/redirect/source-controller.flux-system.svc.cluster.local./x.git")
		},
	},
	{
		name: "git-page-of-others", promise: "network",
		does: "uses the metrics of the controller and the Service of source-controller as a git repository, to read the answer in a message",
		sees: "The Stack waits. No message contains any of the answers.",
		run: func(a *attacker) {
			controller := runningController(a.ctx, a.WithT)
			a.expectURLsRefused("http://"+controller.Status.PodIP+":8080/metrics", "http://source-controller.flux-system.svc.cluster.local/x.git")
		},
	},
	{
		name: "git-error-page", promise: "network",
		does: "redirects to an error page on another host",
		sees: "The Stack waits. No message quotes the page.",
		run: func(a *attacker) {
			a.expectRefused(a.createStack(fromGit("http://"+webHost+"/redirect/web."+attackerName+".svc:8080/page/x.git")), refusal{})
			a.expectUntold(pageCanary)
		},
	},
	{
		name: "service-with-another-name", promise: "names",
		does: "makes the Service of their workspace an alias of the victim's agent",
		sees: "`NameConflict`, or the controller takes over the Service. It connects to the address of the pod and verifies the certificate.",
		run: func(a *attacker) {
			a.create(&corev1.Service{ObjectMeta: inNamespace(attackerName, a.name+"-workspace"), Spec: corev1.ServiceSpec{
				Type: corev1.ServiceTypeExternalName, ExternalName: victimName + "-workspace." + victimName + ".svc.cluster.local",
			}})
			a.expectNameConflict()
		},
	},
}

// expectURLsRefused makes a Stack of each URL and checks that none says what is there.
func (a *attacker) expectURLsRefused(urls ...string) {
	a.t.Helper()
	for i, url := range urls {
		stack := a.newStack(fromGit(url))
		stack.Name += fmt.Sprint("-", i)
		a.create(stack)
		message := a.expectRefusedAnyhow(stack)
		for _, leak := range []string{"controller_runtime", "go_goroutines", "# HELP", "ok\n", pageCanary} {
			a.Expect(strings.Contains(message, leak)).To(BeFalse(), message)
		}
	}
}

// expectRefusedAnyhow waits until the Stack is not run for some reason, Stalled or not, and returns all that its conditions say.
func (a *attacker) expectRefusedAnyhow(stack *pulumiv1.Stack) (message string) {
	a.t.Helper()
	await(a, stack, func(g Gomega, stack *pulumiv1.Stack) {
		g.Expect(stack.Status.Conditions).NotTo(BeEmpty())
		g.Expect(notRunReasons).To(ContainElement(stack.Status.Conditions[readyAt(stack)].Reason), "%+v", stack.Status.Conditions)
		message = fmt.Sprintf("%+v", stack.Status.Conditions)
	})
	return message
}

// notRunReasons are those of a Stack whose source cannot be had.
var notRunReasons = []string{
	pulumiv1.SpecInvalidReason, pulumiv1.AccessDeniedReason, pulumiv1.SourceUnavailableReason, pulumiv1.RepositoryNotFoundReason,
	pulumiv1.AuthenticationFailedReason, pulumiv1.HostKeyUnknownReason,
}

// readyAt is the index of the condition Ready, or of the first one.
func readyAt(stack *pulumiv1.Stack) int {
	for i, condition := range stack.Status.Conditions {
		if condition.Type == "Ready" {
			return i
		}
	}
	return 0
}
