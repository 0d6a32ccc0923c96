package install_test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/tests/framework/cluster"
	"github.com/stack-controller/stack-controller/tests/framework/controlplane"
	"github.com/stack-controller/stack-controller/tests/framework/gitserver"
	"github.com/stack-controller/stack-controller/tests/framework/images"
)

// realCluster is a cluster with Flux, into which the controller can be installed, and a git server.
type realCluster struct {
	*cluster.Cluster
	git       *gitserver.Server
	workspace string // the image of workspaces
	dir       string
}

// startRealCluster starts the cluster when the first test of a pass needs it.
var startRealCluster func() (*realCluster, error)

func newRealCluster() (*realCluster, error) {
	ctx := context.Background()
	c := &realCluster{}
	progress := func(line string) { _, _ = os.Stderr.WriteString(line + "\n") }
	var tars []string
	for _, build := range []func(context.Context, func(string)) (images.Image, error){images.Controller, images.Agent, images.Pulumi} {
		image, err := build(ctx, progress)
		if err != nil {
			return nil, err
		}
		tars = append(tars, image.Tar)
		c.workspace = image.Reference // the last one
	}
	source, err := images.SourceController(ctx, progress)
	if err != nil {
		return nil, err
	}
	// The tests install the product's definitions themselves.
	if c.Cluster, err = cluster.Start(ctx, cluster.Options{Log: os.Stderr, CRDs: []string{}, Images: tars}); err != nil {
		return nil, err
	}
	if err := c.InstallFlux(ctx, source); err != nil {
		return c, err
	}
	if err := c.EnforceNetworkPolicies(ctx); err != nil {
		return c, err
	}
	if c.dir, err = os.MkdirTemp("", "install-"); err != nil {
		return c, err
	}
	if c.git, err = gitserver.Start(filepath.Join(c.dir, "git")); err != nil {
		return c, err
	}
	listener, err := c.Listen("tcp", net.JoinHostPort(c.NodeAddress, "0"))
	if err != nil {
		return c, err
	}
	return c, c.git.Publish(listener)
}

var realClusterWanted bool

// stopRealCluster stops what onCluster has started.
func stopRealCluster() error {
	if !realClusterWanted {
		return nil
	}
	c, _ := startRealCluster()
	if c == nil {
		return nil
	}
	if c.git != nil {
		c.git.Stop()
	}
	if err := os.RemoveAll(c.dir); err != nil {
		return err
	}
	return c.Stop()
}

// clusterBusy is held by the test that has the controller installed on the cluster. All other tests run in parallel with it.
var clusterBusy sync.Mutex

// onCluster returns the cluster that the tests of this package share. Only one test uses it at a time.
func onCluster(t *testing.T) *realCluster {
	t.Helper()
	cluster.Require(t)
	t.Parallel()
	clusterBusy.Lock()
	t.Cleanup(clusterBusy.Unlock)
	realClusterWanted = true
	c, err := startRealCluster()
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return c
}

// kubectl runs kubectl, which must succeed, and returns its output.
func (c *realCluster) kubectl(t *testing.T, args ...string) string {
	t.Helper()
	output, err := c.Kubectl(t.Context(), args...)
	NewWithT(t).Expect(err).NotTo(HaveOccurred(), output)
	return output
}

// run runs a tool that finds the cluster through KUBECONFIG.
func (c *realCluster) run(t *testing.T, env []string, path string, args ...string) {
	t.Helper()
	cmd := c.Command(context.WithoutCancel(t.Context()), path, args...)
	cmd.Env = append(append(os.Environ(), "KUBECONFIG="+c.KubeconfigPath), env...)
	output, err := cmd.CombinedOutput()
	NewWithT(t).Expect(err).NotTo(HaveOccurred(), string(output))
}

// apply applies a file of testdata, with the placeholders replaced by the values.
func (c *realCluster) apply(t *testing.T, file string, values ...string) {
	t.Helper()
	expanded := strings.NewReplacer(values...).Replace(read(t, "testdata", file))
	output, err := c.KubectlInput(t.Context(), expanded, "apply", "--server-side", "--filename=-")
	NewWithT(t).Expect(err).NotTo(HaveOccurred(), output)
}

// installKustomizeController runs Flux's kustomize-controller.
func (c *realCluster) installKustomizeController(t *testing.T) {
	t.Helper()
	g := NewWithT(t)
	image, err := images.KustomizeController(t.Context(), nil)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(c.LoadImage(t.Context(), image.Tar)).To(Succeed())
	definitions, err := controlplane.FluxCRDs(t.Context(), "kustomize-controller")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(c.InstallCRDs(definitions)).To(Succeed())
	c.apply(t, "kustomize-controller.yaml", "${IMAGE}", image.Reference)
}

const timeout = "--timeout=120s"

// awaitController waits until the rollout of the controller is complete.
func (c *realCluster) awaitController(t *testing.T) {
	t.Helper()
	output, err := c.Kubectl(t.Context(), "rollout", "status", "deployment/stack-controller", "--namespace=flux-system", timeout)
	if err != nil {
		pods, _ := c.Kubectl(t.Context(), "describe", "pods", "--namespace=flux-system", "--selector=app=stack-controller")
		t.Fatalf("%v\n%s\n%s", err, output, pods)
	}
}

// awaitReadyStack creates a Stack, waits until it is ready, and deletes it with what it has deployed.
func (c *realCluster) awaitReadyStack(t *testing.T, name string) {
	t.Helper()
	c.deployStack(t, name, name)
	c.awaitStack(t, name, name)
	c.removeStack(t, name)
	c.kubectl(t, "delete", "namespace/"+name, "persistentvolume/"+name, timeout)
}

// deployStack creates the Stack "greeting" in the namespace. Its output is a greeting that contains the name.
func (c *realCluster) deployStack(t *testing.T, namespace, name string) {
	t.Helper()
	g := NewWithT(t)
	repository, _, err := c.git.Create(name, gitserver.Files{"Pulumi.yaml": "name: greeting\nruntime: yaml\noutputs: {greeting: hello from " + name + "}\n"})
	g.Expect(err).NotTo(HaveOccurred())
	state := filepath.Join(c.dir, "state-"+name)
	g.Expect(os.Mkdir(state, 0o700)).To(Succeed())
	g.Expect(os.Chmod(state, 0o777)).To(Succeed(), "for the user of the workspace pod")

	c.apply(t, "stack.yaml", "${NAME}", namespace, "${STATE}", state, "${REPOSITORY}", repository.URL, "${IMAGE}", c.workspace)
}

// awaitStack waits until the Stack in the namespace is ready and its output is the greeting with the name.
func (c *realCluster) awaitStack(t *testing.T, namespace, name string) {
	t.Helper()
	if output, err := c.Kubectl(t.Context(), "wait", "stack/greeting", "--namespace="+namespace, "--for=condition=Ready", timeout); err != nil {
		t.Fatalf("%v\n%s\n%s", err, output, c.explain(t, namespace))
	}
	outputs := c.kubectl(t, "get", "stack/greeting", "--namespace="+namespace, "--output=jsonpath={.status.outputs}")
	NewWithT(t).Expect(outputs).To(Equal(`{"greeting":"hello from ` + name + `"}`))
}

// removeStack deletes the Stack in the namespace, with what it has deployed.
func (c *realCluster) removeStack(t *testing.T, namespace string) {
	t.Helper()
	if output, err := c.Kubectl(t.Context(), "delete", "stack/greeting", "--namespace="+namespace, timeout); err != nil {
		t.Fatalf("%v\n%s\n%s", err, output, c.explain(t, namespace))
	}
}

// explain returns the state of a namespace, for the message of a failed test.
func (c *realCluster) explain(t *testing.T, namespace string) string {
	t.Helper()
	var out strings.Builder
	for _, args := range [][]string{
		{"get", "stacks,workspaces,updates,gitrepositories", "--namespace=" + namespace, "--output=yaml"},
		{"describe", "pods", "--namespace=" + namespace},
		{"logs", "--namespace=" + namespace, "--selector=auto.pulumi.com/component=workspace", "--all-containers", "--tail=40"},
		{"logs", "deployment/stack-controller", "--namespace=flux-system", "--tail=40"},
	} {
		output, err := c.Kubectl(context.WithoutCancel(t.Context()), args...)
		if err != nil {
			output += err.Error()
		}
		out.WriteString(output + "\n")
	}
	return out.String()
}
