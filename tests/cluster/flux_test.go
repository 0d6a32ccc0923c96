package cluster_test

import (
	"net"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stack-controller/stack-controller/tests/cluster"
	"github.com/stack-controller/stack-controller/tests/gitserver"
	"github.com/stack-controller/stack-controller/tests/images"
	"github.com/stack-controller/stack-controller/tests/suite"
)

func TestFluxServesArtifactsToItsOwnNamespaceOnly(t *testing.T) {
	suite.Long(t, "needs a node")
	g := NewWithT(t)
	image, err := images.SourceController(t.Context(), nil)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(shared.InstallFlux(t.Context(), image)).To(Succeed())
	g.Expect(shared.EnforceNetworkPolicies(t.Context())).To(Succeed())
	outside := newNamespace(g, t, nil)

	git, err := gitserver.Start(t.TempDir())
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(git.Stop)
	listener, err := shared.Listen("tcp", net.JoinHostPort(shared.NodeAddress, "0"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(git.Publish(listener)).To(Succeed())
	repository, sha, err := git.Create("demo", gitserver.Files{"Pulumi.yaml": "name: demo\n"})
	g.Expect(err).NotTo(HaveOccurred())

	source := cloned(g, t, outside, repository)
	g.Expect(source.Status.Artifact.Revision).To(Equal("main@sha1:" + sha))
	g.Expect(source.Status.Artifact.URL).To(HavePrefix("http://source-controller.flux-system.svc.cluster.local./"))
	url := source.Status.Artifact.URL
	g.Expect(output(g, t, cluster.FluxNamespace, "fetch", "wget -q -O - "+url+" | tar -xzO Pulumi.yaml")).To(Equal("name: demo\n"))
	g.Expect(output(g, t, outside, "fetch", fetch(url))).To(ContainSubstring(unreachable))
}

// cloned makes a GitRepository and returns it once it is ready and has its artifact, which come with separate patches.
func cloned(g *WithT, t *testing.T, namespace string, repository *gitserver.Repository) *sourcev1.GitRepository {
	scheme := runtime.NewScheme()
	g.Expect(sourcev1.AddToScheme(scheme)).To(Succeed())
	c, err := client.New(shared.Config(), client.Options{Scheme: scheme})
	g.Expect(err).NotTo(HaveOccurred())
	source := &sourcev1.GitRepository{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "demo"},
		Spec: sourcev1.GitRepositorySpec{
			URL:       repository.URL,
			Interval:  metav1.Duration{Duration: time.Hour},
			Reference: &sourcev1.GitRepositoryRef{Branch: gitserver.Branch},
		},
	}
	g.Expect(c.Create(t.Context(), source)).To(Succeed())
	g.Eventually(func() (bool, error) {
		err := c.Get(t.Context(), client.ObjectKeyFromObject(source), source)
		return source.Status.Artifact != nil && apimeta.IsStatusConditionTrue(source.Status.Conditions, meta.ReadyCondition), err
	}, patience).Should(BeTrue())
	return source
}
