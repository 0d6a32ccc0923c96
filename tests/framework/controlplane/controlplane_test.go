package controlplane_test

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/discovery"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	"github.com/stack-controller/stack-controller/tests/framework/controlplane"
	"github.com/stack-controller/stack-controller/tests/framework/gitserver"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
	"github.com/stack-controller/stack-controller/tests/tools"
)

// patience bounds every wait. On a quiet machine each wait takes less than two seconds.
const patience = 30 * time.Second

var cluster *controlplane.ControlPlane

func TestMain(m *testing.M) {
	options := controlplane.Options{
		CRDs:                       []string{}, // these tests do not use the product's own
		WithControllerManager:      true,
		WithSourceController:       true,
		WithNotificationController: true,
	}
	os.Exit(controlplane.RunTests(m, options, func(cp *controlplane.ControlPlane) error {
		cluster = cp
		return nil
	}))
}

func newClient(g *WithT, config *rest.Config) client.Client {
	scheme := runtime.NewScheme()
	g.Expect(clientgoscheme.AddToScheme(scheme)).To(Succeed())
	g.Expect(sourcev1.AddToScheme(scheme)).To(Succeed())
	c, err := client.New(config, client.Options{Scheme: scheme})
	g.Expect(err).NotTo(HaveOccurred())
	return c
}

// newNamespace creates a namespace and deletes it when the test ends.
func newNamespace(g *WithT, t *testing.T, c client.Client) *corev1.Namespace {
	namespace := &corev1.Namespace{GenerateName: "test-"}
	g.Expect(c.Create(t.Context(), namespace)).To(Succeed())
	t.Cleanup(func() {
		g.Expect(client.IgnoreNotFound(c.Delete(context.Background(), namespace))).To(Succeed())
	})
	return namespace
}

func TestAPIServerHasTheVersionThatTheSuiteNames(t *testing.T) {
	g := NewWithT(t)
	newest, err := tools.Version("kube-apiserver")
	g.Expect(err).NotTo(HaveOccurred())
	servers, err := discovery.NewDiscoveryClientForConfig(cluster.Config())
	g.Expect(err).NotTo(HaveOccurred())
	version, err := servers.ServerVersion()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(version.GitVersion).To(Equal(cmp.Or(os.Getenv(suite.KubernetesVariable), newest)))
}

func TestNamespaceDeletionCompletes(t *testing.T) {
	g := NewWithT(t)
	c := newClient(g, cluster.Config())
	namespace := newNamespace(g, t, c)
	content := &corev1.ConfigMap{Namespace: namespace.Name, Name: "content"}
	g.Expect(c.Create(t.Context(), content)).To(Succeed())

	g.Expect(c.Delete(t.Context(), namespace)).To(Succeed())
	g.Eventually(func() error {
		return c.Get(t.Context(), client.ObjectKeyFromObject(namespace), &corev1.Namespace{})
	}, patience).Should(Satisfy(apierrors.IsNotFound))
}

func TestOwnedObjectIsCollectedWithItsOwner(t *testing.T) {
	g := NewWithT(t)
	c := newClient(g, cluster.Config())
	namespace := newNamespace(g, t, c)
	owner := &sourcev1.GitRepository{
		Namespace: namespace.Name, Name: "owner",
		Spec: sourcev1.GitRepositorySpec{URL: "https://example.com/unused", Suspend: true, Interval: metav1.Duration{Duration: time.Hour}},
	}
	g.Expect(c.Create(t.Context(), owner)).To(Succeed())
	owned := &corev1.Secret{
		Namespace: namespace.Name,
		Name:      "owned",
		OwnerReferences: []metav1.OwnerReference{
			{APIVersion: sourcev1.GroupVersion.String(), Kind: sourcev1.GitRepositoryKind, Name: owner.Name, UID: owner.UID},
		}}
	g.Expect(c.Create(t.Context(), owned)).To(Succeed())

	g.Expect(c.Delete(t.Context(), owner)).To(Succeed())
	g.Eventually(func() error {
		return c.Get(t.Context(), client.ObjectKeyFromObject(owned), &corev1.Secret{})
	}, patience).Should(Satisfy(apierrors.IsNotFound))
}

func TestUserHasOnlyTheRightsThatWereGranted(t *testing.T) {
	g := NewWithT(t)
	admin := newClient(g, cluster.Config())
	namespace := newNamespace(g, t, admin)
	user := newClient(g, cluster.UserConfig("alice", "developers"))
	list := func() error {
		return user.List(t.Context(), &corev1.SecretList{}, client.InNamespace(namespace.Name))
	}
	g.Expect(list()).To(Satisfy(apierrors.IsForbidden))

	role := &rbacv1.Role{
		Namespace: namespace.Name, Name: "readers",
		Rules: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"secrets"}, Verbs: []string{"list"}}},
	}
	g.Expect(admin.Create(t.Context(), role)).To(Succeed())
	binding := &rbacv1.RoleBinding{
		Namespace: namespace.Name, Name: "readers",
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: role.Name},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: "developers"}},
	}
	g.Expect(admin.Create(t.Context(), binding)).To(Succeed())
	g.Eventually(list, patience).Should(Succeed())
}

func TestServiceAccountGetsAToken(t *testing.T) {
	g := NewWithT(t)
	admin := newClient(g, cluster.Config())
	namespace := newNamespace(g, t, admin)
	var config *rest.Config
	g.Eventually(func() (err error) {
		config, err = cluster.ServiceAccountConfig(t.Context(), namespace.Name, "default")
		return err
	}, patience).Should(Succeed(), "kube-controller-manager makes the ServiceAccount")

	path, err := cluster.WriteKubeconfig("account", config)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(path).To(BeARegularFile())
	review := &authenticationv1.SelfSubjectReview{}
	g.Expect(newClient(g, config).Create(t.Context(), review)).To(Succeed())
	g.Expect(review.Status.UserInfo.Username).To(Equal("system:serviceaccount:" + namespace.Name + ":default"))
}

func TestKubectlReportsWhatTheServerSaid(t *testing.T) {
	g := NewWithT(t)
	output, err := cluster.Kubectl(t.Context(), "get", "namespaces", "--output=name")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(output).To(ContainSubstring("namespace/kube-system"))

	_, err = cluster.Kubectl(t.Context(), "get", "configmap", "missing")
	g.Expect(err).To(MatchError(ContainSubstring(`configmaps "missing" not found`)))

	_, err = cluster.KubectlInput(t.Context(), "kind: Nothing\napiVersion: v1\nmetadata: {name: x}\n", "apply", "--filename=-")
	g.Expect(err).To(MatchError(ContainSubstring("Nothing")))
}

func TestSourceControllerPublishesACommitAsAnArtifact(t *testing.T) {
	g := NewWithT(t)
	c := newClient(g, cluster.Config())
	namespace := newNamespace(g, t, c)
	git, err := gitserver.Start(t.TempDir())
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(git.Stop)
	repository, sha, err := git.Create("demo", gitserver.Files{"Pulumi.yaml": "name: demo\n"})
	g.Expect(err).NotTo(HaveOccurred())

	source := &sourcev1.GitRepository{
		Namespace: namespace.Name, Name: "demo",
		Spec: sourcev1.GitRepositorySpec{
			URL:       repository.URL,
			Interval:  metav1.Duration{Duration: time.Hour},
			Reference: &sourcev1.GitRepositoryRef{Branch: gitserver.Branch},
		},
	}
	g.Expect(c.Create(t.Context(), source)).To(Succeed())
	revision := func() string {
		g.Expect(c.Get(t.Context(), client.ObjectKeyFromObject(source), source)).To(Succeed())
		if source.Status.Artifact == nil {
			return ""
		}
		return source.Status.Artifact.Revision
	}
	g.Eventually(revision, patience).Should(Equal("main@sha1:" + sha))
	g.Expect(filesOfArtifact(g, source.Status.Artifact.URL)).To(HaveKeyWithValue("Pulumi.yaml", "name: demo\n"))

	sha, err = repository.Commit(gitserver.Files{"Pulumi.yaml": "name: changed\n"})
	g.Expect(err).NotTo(HaveOccurred())
	base := client.MergeFrom(source.DeepCopy())
	metav1.SetMetaDataAnnotation(&source.ObjectMeta, meta.ReconcileRequestAnnotation, time.Now().String())
	g.Expect(c.Patch(t.Context(), source, base)).To(Succeed())
	g.Eventually(revision, patience).Should(Equal("main@sha1:" + sha))
	g.Expect(filesOfArtifact(g, source.Status.Artifact.URL)).To(HaveKeyWithValue("Pulumi.yaml", "name: changed\n"))
}

func filesOfArtifact(g *WithT, url string) map[string]string {
	response, err := http.Get(url)
	g.Expect(err).NotTo(HaveOccurred())
	defer func() { _ = response.Body.Close() }()
	g.Expect(response).To(HaveHTTPStatus(http.StatusOK))
	archive, err := gzip.NewReader(response.Body)
	g.Expect(err).NotTo(HaveOccurred())
	files := map[string]string{}
	reader := tar.NewReader(archive)
	for {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		g.Expect(err).NotTo(HaveOccurred())
		var content bytes.Buffer
		_, err = io.Copy(&content, reader)
		g.Expect(err).NotTo(HaveOccurred())
		files[header.Name] = content.String()
	}
}

// processesIn returns the ids of the processes whose working directory is below the given one.
func processesIn(g *WithT, dir string) []string {
	links, err := filepath.Glob("/proc/[0-9]*/cwd")
	g.Expect(err).NotTo(HaveOccurred())
	var found []string
	for _, link := range links {
		if target, err := os.Readlink(link); err == nil && strings.HasPrefix(target, dir+"/") {
			found = append(found, strings.Split(link, "/")[2])
		}
	}
	return found
}

func TestStopLeavesNeitherProcessNorFile(t *testing.T) {
	g := NewWithT(t)
	dir := filepath.Join(t.TempDir(), "cp")
	cp, err := controlplane.Start(t.Context(), controlplane.Options{Dir: dir, CRDs: []string{}})
	g.Expect(err).NotTo(HaveOccurred())
	supervisor := fmt.Sprintf("/proc/%d", cp.Supervisor().PID())
	g.Expect(processesIn(g, dir)).To(HaveLen(2), "etcd and kube-apiserver")

	g.Expect(cp.Stop()).To(Succeed())
	g.Expect(processesIn(g, dir)).To(BeEmpty())
	g.Expect(supervisor).NotTo(BeADirectory())
	g.Expect(dir).NotTo(BeADirectory())
	g.Expect(cp.Stop()).To(Succeed(), "stopping twice is fine")
}

func TestFailedStartShowsTheLogAndLeavesNothing(t *testing.T) {
	g := NewWithT(t)
	dir := filepath.Join(t.TempDir(), "cp")
	broken := filepath.Join(t.TempDir(), "etcd")
	g.Expect(os.WriteFile(broken, []byte("#!/bin/sh\necho the disk is on fire >&2\nexit 4\n"), 0o700)).To(Succeed())
	t.Setenv("TEST_ASSET_ETCD", broken)

	_, err := controlplane.Start(context.Background(), controlplane.Options{Dir: dir})
	g.Expect(err).To(MatchError(And(
		ContainSubstring("start etcd"), ContainSubstring("exit status 4"), ContainSubstring("the disk is on fire"))))
	g.Expect(processesIn(g, dir)).To(BeEmpty())
	g.Expect(dir).NotTo(BeADirectory())
}
