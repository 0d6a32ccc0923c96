// Package languages_test deploys programs in the languages that users write, with the real SDKs and Pulumi's provider for Kubernetes, in pods.
package languages_test

import (
	"context"
	"flag"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/runtime/conditions"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/gitserver"
	"github.com/stack-controller/stack-controller/tests/framework/localsystem"
	"github.com/stack-controller/stack-controller/tests/framework/podsystem"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
)

const (
	// patience bounds what a test waits for. The first update of a program installs and compiles, beside other tests.
	patience     = 15 * time.Minute
	pollInterval = 200 * time.Millisecond
)

// system is the running system that all tests of the package share. Each test has a namespace of its own.
var system *podsystem.System

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	flag.Parse()
	suite.LongPackage("installs and runs programs in pods")
	// A program takes a processor and up to a gigabyte of memory.
	if err := flag.Set("test.parallel", "3"); err != nil {
		panic(err)
	}
	os.Exit(podsystem.RunTests(m, podsystem.Options{WithLanguages: true}, func(s *podsystem.System) { system = s }))
}

// project returns the files of a project in testdata, with those of others added or replaced.
func project(t *testing.T, name string, others ...gitserver.Files) gitserver.Files {
	t.Helper()
	files, err := gitserver.FilesFromDir(filepath.Join("testdata", name))
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	for _, other := range others {
		maps.Copy(files, other)
	}
	return files
}

// named gives each project the name of its test: all tests share one backend.
func named(name string, files gitserver.Files) gitserver.Files {
	result := gitserver.Files{}
	for path, content := range files {
		if filepath.Base(path) == "Pulumi.yaml" {
			content = projectName.ReplaceAllString(content, "name: "+name)
		}
		result[path] = content
	}
	return result
}

var projectName = regexp.MustCompile(`(?m)^name: .*$`)

// provide creates a namespace for an app, in which the program may do what the ClusterRole edit allows, and returns the app with a Stack that
// is not created yet. The namespace is removed when the test ends.
func provide(t *testing.T, name string, files gitserver.Files) (*localsystem.App, *pulumiv1.Stack) {
	t.Helper()
	g, ctx := NewWithT(t), t.Context()
	t.Cleanup(func() {
		namespace := &corev1.Namespace{Name: name}
		g.Expect(client.IgnoreNotFound(system.Client.Delete(context.Background(), namespace))).To(Succeed())
	})
	app, stack, err := system.Provide(ctx, name, named(name, files))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(system.Client.Create(ctx, &rbacv1.RoleBinding{
		Namespace: name, Name: "programs",
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "edit"},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: name, Name: "default"}},
	})).To(Succeed())
	prepare(stack)
	return app, stack
}

// prepare makes the Stack use the image with all languages, and the mirrors of their packages.
func prepare(stack *pulumiv1.Stack) {
	workspace := stack.Spec.WorkspaceTemplate.Spec
	workspace.Image = system.Images.Languages.Reference
	workspace.Resources.Requests[corev1.ResourceMemory] = resource.MustParse("512Mi")
	for name, value := range map[string]string{
		"npm_config_registry": system.Packages.NPM, "YARN_REGISTRY": system.Packages.NPM, "pnpm_config_registry": system.Packages.NPM,
		// Pulumi's own image has yarn and pnpm through corepack, which downloads them when the user has none.
		"COREPACK_NPM_REGISTRY": strings.TrimSuffix(system.Packages.NPM, "/"),

		"GOPROXY": system.Packages.GoProxy, "GONOSUMDB": "*", "GOFLAGS": "-modcacherw",
		// pip trusts no index without TLS unless it is told to.
		"PIP_INDEX_URL": system.Packages.Python, "PIP_TRUSTED_HOST": system.Cluster.NodeAddress, "UV_DEFAULT_INDEX": system.Packages.Python,
	} {
		stack.Spec.EnvRefs[name] = literal(value)
	}
}

func literal(value string) pulumiv1.ResourceRef {
	return pulumiv1.ResourceRef{Type: pulumiv1.ResourceRefLiteral, LiteralRef: &pulumiv1.LiteralRef{Value: value}}
}

// deploy deploys a program in a namespace of that name, and returns when the Stack is ready.
func deploy(t *testing.T, name string, files gitserver.Files, changes ...func(*pulumiv1.Stack)) (*localsystem.App, *pulumiv1.Stack) {
	t.Helper()
	app, stack := provide(t, name, files)
	for _, change := range changes {
		change(stack)
	}
	NewWithT(t).Expect(system.Client.Create(t.Context(), stack)).To(Succeed())
	return app, waitReady(t, app)
}

// pinInGit makes the Stack take its program from the repository itself, at a commit with the files that it has, and returns this commit.
func pinInGit(t *testing.T, app *localsystem.App, stack *pulumiv1.Stack) (sha string) {
	t.Helper()
	sha, err := app.Repository.Commit(nil)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	stack.Spec.FluxSource, stack.Spec.GitSource = nil, pulumiv1.GitSource{ProjectRepo: app.Repository.URL, Commit: sha}
	return sha
}

// waitReady waits until the Stack is ready, and bounds the wait.
func waitReady(t *testing.T, app *localsystem.App) *pulumiv1.Stack {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	stack, err := system.WaitReady(ctx, app)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return stack
}

// commit commits the files, and waits for the outcome of the update of this commit.
func commit(t *testing.T, app *localsystem.App, files gitserver.Files) *pulumiv1.Stack {
	t.Helper()
	return awaitUpdate(t, app, push(t, app, files))
}

// awaitUpdate waits for the outcome of the update of the commit.
func awaitUpdate(t *testing.T, app *localsystem.App, sha string) *pulumiv1.Stack {
	t.Helper()
	return await(t, app.Key(), func(g Gomega, stack *pulumiv1.Stack) {
		g.Expect(stack.Status.LastUpdate).NotTo(BeNil(), "%s", conditions.GetMessage(stack, "Ready"))
		g.Expect(stack.Status.LastUpdate.Revision).To(HaveSuffix(sha))
		g.Expect(stack.Status.CurrentUpdate).To(BeNil())
	})
}

// push commits the files, and returns the commit.
func push(t *testing.T, app *localsystem.App, files gitserver.Files) (sha string) {
	t.Helper()
	g := NewWithT(t)
	sha, err := app.Repository.Commit(files)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(system.Fetch(t.Context(), app)).To(Succeed())
	return sha
}

// await waits until the assertions hold for the Stack, and returns it.
func await(t *testing.T, key client.ObjectKey, assertions func(g Gomega, stack *pulumiv1.Stack)) *pulumiv1.Stack {
	t.Helper()
	var found *pulumiv1.Stack
	NewWithT(t).Eventually(func(g Gomega) {
		stack := &pulumiv1.Stack{}
		g.Expect(system.Client.Get(t.Context(), key, stack)).To(Succeed())
		assertions(g, stack)
		found = stack
	}).WithContext(t.Context()).WithTimeout(patience).WithPolling(pollInterval).Should(Succeed())
	return found
}

// awaitFailure waits until the first update of the Stack has failed, and returns what the Stack says about it.
func awaitFailure(t *testing.T, key client.ObjectKey) (message string) {
	t.Helper()
	stack := await(t, key, func(g Gomega, stack *pulumiv1.Stack) {
		g.Expect(stack.Status.LastUpdate).NotTo(BeNil(), "%s", conditions.GetMessage(stack, "Ready"))
		g.Expect(stack.Status.LastUpdate.State).To(Equal(pulumiv1.StackUpdateFailed))
	})
	return stack.Status.LastUpdate.Message
}
