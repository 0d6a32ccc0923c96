package controlplane_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"net/http"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stack-controller/stack-controller/tests/gitserver"
)

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
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace.Name, Name: "demo"},
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
