package tenancy_test

import (
	"fmt"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// pageCanary is in every page of the attacker's web server.
const pageCanary = "page-canary-55e1"

// networkAttacks have the controller, which reaches what a tenant does not, connect to an address.
var networkAttacks = []attack{
	{
		name: "git-metadata-service", promise: "network",
		does: "uses the metadata service of a cloud, in several notations, as a git repository",
		sees: "`SourceUnavailable`: the address is rejected, and no request is sent.",
		run: func(a *attacker) {
			a.expectURLsRefused(unavailable(addressRefused),
				"http://169.254.169.254/latest/meta-data", "http://[fd00:ec2::254]/latest", "http://[::ffff:169.254.169.254]/latest")
			// To the controller these are names, which nobody has.
			a.expectURLsRefused(unavailable(""), "http://0xa9fea9fe/latest", "http://2852039166/latest")
		},
	},
	{
		name: "git-loopback", promise: "network",
		does: "uses the controller's own ports as a git repository",
		sees: "`SourceUnavailable`: the address is rejected. No message contains any metrics.",
		run: func(a *attacker) {
			a.expectURLsRefused(unavailable(addressRefused),
				"http://127.0.0.1:8080/metrics", "http://localhost:8080/metrics", "http://[::1]:9440/healthz", "http://0.0.0.0:8080/metrics")
		},
	},
	{
		name: "git-files", promise: "network",
		does: "uses a file, and unsupported schemes, as a git repository",
		sees: "`SpecInvalid`, Stalled",
		run: func(a *attacker) {
			for _, url := range []string{"file:///var/run/secrets", "/data/artifacts", "git://" + webHost + "/x.git", "ext::sh -c id"} {
				a.expectRefused(a.numbered(a.newStack(fromGit(url))), refusal{reasons: []string{pulumiv1.SpecInvalidReason}, stalled: true})
			}
		},
	},
	{
		name: "git-redirect", promise: "network",
		does: "redirects from their own git server to the metadata service, to source-controller and to the controller's metrics",
		sees: "`SourceUnavailable` and `RepositoryNotFound`. No message contains any of the answers.",
		run: func(a *attacker) {
			local := []string{"/redirect/169.254.169.254/x.git", "/redirect/127.0.0.1:8080/metrics"}
			a.expectURLsRefused(unavailable(addressRefused), "http://"+webHost+local[0], "http://"+webHost+local[1])
			// Private addresses are allowed.
			other := "/redirect/source-controller.flux-system.svc.cluster.local./x.git"
			a.expectURLsRefused(noRepository, "http://"+webHost+other)
			a.expectRequested(append(local, other)...)
		},
	},
	{
		name: "git-page-of-others", promise: "network",
		does: "uses the metrics of the controller and the Service of source-controller as a git repository, to read the answer in a message",
		sees: "`RepositoryNotFound`. No message contains any of the answers.",
		run: func(a *attacker) {
			controller := runningController(a.ctx, a.WithT)
			a.expectURLsRefused(noRepository, "http://"+controller.Status.PodIP+":8080/metrics", "http://source-controller.flux-system.svc.cluster.local/x.git")
		},
	},
	{
		name: "git-error-page", promise: "network",
		does: "redirects to an error page on another host",
		sees: "`SourceUnavailable`. No message quotes the page.",
		run: func(a *attacker) {
			web := &corev1.Pod{}
			a.Expect(a.client.Get(a.ctx, client.ObjectKey{Namespace: attackerName, Name: "web"}, web)).To(Succeed())
			page := "/page/" + a.name + ".git"
			a.expectRefused(a.createStack(fromGit("http://"+webHost+"/redirect/"+web.Status.PodIP+":8080"+page)), unavailable("status 500"))
			a.expectRequested(page + "/info/refs")
			a.expectUntold(pageCanary)
		},
	},
	{
		name: "service-with-another-name", promise: "names",
		does: "makes the Service of their workspace an alias of the victim's agent",
		sees: "`NameConflict`: the controller connects to the address of the pod, and does not take over the Service.",
		run: func(a *attacker) {
			a.create(&corev1.Service{ObjectMeta: inNamespace(attackerName, a.name+"-workspace"), Spec: corev1.ServiceSpec{
				Type: corev1.ServiceTypeExternalName, ExternalName: victimName + "-workspace." + victimName + ".svc.cluster.local",
			}})
			a.expectNameConflict()
		},
	},
}

// addressRefused is the advice for a server that the controller does not connect to.
const addressRefused = "use the address of another machine"

// noRepository is what a Stack says of a server that answers, but not as a git server.
var noRepository = refusal{reasons: []string{pulumiv1.RepositoryNotFoundReason}}

// unavailable is what a Stack says whose git server cannot be used.
func unavailable(says string) refusal {
	return refusal{reasons: []string{pulumiv1.SourceUnavailableReason}, says: says}
}

// expectURLsRefused makes a Stack of each URL and checks that it is refused, and that none says what is there.
func (a *attacker) expectURLsRefused(want refusal, urls ...string) {
	a.t.Helper()
	for _, url := range urls {
		stack := a.numbered(a.newStack(fromGit(url)))
		a.expectState(stack, want)
		said := fmt.Sprintf("%+v", stack.Status)
		for _, leak := range []string{"controller_runtime", "go_goroutines", "# HELP", "ok\n", pageCanary} {
			a.Expect(said).NotTo(ContainSubstring(leak), url)
		}
	}
}
