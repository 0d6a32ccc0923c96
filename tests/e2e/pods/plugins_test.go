package pods_test

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"crypto/rand"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/gitserver"
	"github.com/stack-controller/stack-controller/tests/framework/localsystem"
	"github.com/stack-controller/stack-controller/tests/framework/programs"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
	"github.com/stack-controller/stack-controller/tests/tools"
)

// pluginSize is the size of the plugin that a pod gets from outside the image. A third of it cannot be compressed, like real plugins. The
// measurements in the guide come from: go test ./tests/e2e/pods -run TestPlugins -v -plugin-megabytes=300
var pluginSize = flag.Int("plugin-megabytes", 30, "the size of the plugin in TestPluginsComeFromASharedVolumeOrFromAMirror")

// The image does not have this version of the plugin.
const (
	sharedPlugin = "resource-test-v0.1.1"
	pluginFile   = "pulumi-resource-test"
	mirroredFile = "pulumi-resource-test-v0.1.1-linux-amd64.tar.gz"
)

// TestPluginsComeFromASharedVolumeOrFromAMirror deploys the same program in new pods, first with a shared read-only volume and then with a
// mirror. Neither needs the Internet, which a cluster of the tests cannot reach.
func TestPluginsComeFromASharedVolumeOrFromAMirror(t *testing.T) {
	suite.Long(t, "installs plugins in pods")
	t.Parallel()
	g := NewWithT(t)
	ctx := t.Context()
	const name = "plugins"
	removeNamespaceAtEnd(t, g, name)
	app, template, err := system.Provide(ctx, name, withPlugin(name))
	g.Expect(err).NotTo(HaveOccurred())
	dir := writePlugin(t, g)
	claimPlugins(ctx, t, g, name, dir)
	address, downloads := mirror(t, g, dir)

	// start creates the Stacks at the same time, and returns the time until the last of them is ready.
	start := func(prefix string, stacks int, change func(*pulumiv1.Stack)) time.Duration {
		began := time.Now()
		for i := range stacks {
			stack := template.DeepCopy()
			stack.Name = fmt.Sprintf("%s-%d", prefix, i)
			stack.Spec.Stack = stack.Name
			change(stack)
			g.Expect(system.Client.Create(ctx, stack)).To(Succeed())
		}
		for i := range stacks {
			ready := waitReady(ctx, g, &localsystem.App{Namespace: name, Name: fmt.Sprintf("%s-%d", prefix, i), Repository: app.Repository})
			g.Expect(ready.Status.LastUpdate.ResourceChanges).To(HaveKeyWithValue("create", BeEquivalentTo(2)))
		}
		return time.Since(began).Round(10 * time.Millisecond)
	}
	useMirror := func(stack *pulumiv1.Stack) {
		stack.Spec.EnvRefs["PULUMI_PLUGIN_DOWNLOAD_URL_OVERRIDES"] = pulumiv1.ResourceRef{
			Type: pulumiv1.ResourceRefLiteral, LiteralRef: &pulumiv1.LiteralRef{Value: ".*=" + address},
		}
	}
	runs := []int{1}
	if *pluginSize >= 100 {
		runs = []int{1, 1, 1, 10} // a measurement
	}
	for i, stacks := range runs {
		t.Logf("a plugin of %d MB from a shared volume: %d ready after %s", *pluginSize, stacks, start(fmt.Sprintf("volume-%d", i), stacks, mountPlugins))
	}
	g.Expect(downloads.Load()).To(BeZero())
	for i, stacks := range runs {
		before := downloads.Load()
		t.Logf("a plugin of %d MB from a mirror: %d ready after %s", *pluginSize, stacks, start(fmt.Sprintf("mirror-%d", i), stacks, useMirror))
		g.Expect(downloads.Load() - before).To(BeEquivalentTo(stacks))
	}
}

// withPlugin returns a program with a resource of the plugin.
func withPlugin(project string) gitserver.Files {
	return gitserver.Files{"Pulumi.yaml": fmt.Sprintf(`name: %s
runtime: yaml
resources:
  thing:
    type: test:index:Sleep
    properties: {seconds: 0}
    options: {version: 0.1.1}
`, project)}
}

// mountPlugins changes the Stack as the guide describes.
func mountPlugins(stack *pulumiv1.Stack) {
	pod := &stack.Spec.WorkspaceTemplate.Spec.PodTemplate.Spec.PodSpec
	pod.Volumes = append(pod.Volumes, corev1.Volume{Name: "plugins",
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "plugins", ReadOnly: true}})
	container := &pod.Containers[0]
	container.Env = append(container.Env, corev1.EnvVar{Name: "STACK_CONTROLLER_PLUGINS", Value: "/plugins"})
	container.VolumeMounts = append(container.VolumeMounts, corev1.VolumeMount{Name: "plugins", MountPath: "/plugins", ReadOnly: true})
}

// writePlugin writes the plugin into a directory, both as the CLI stores it and as a download.
func writePlugin(t *testing.T, g *WithT) string {
	t.Helper()
	dir, err := os.MkdirTemp(system.Cluster.Dir, "plugins-")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(os.Chmod(dir, 0o755)).To(Succeed())
	home := t.TempDir()
	g.Expect(programs.PutProvider(t.Context(), home)).Error().NotTo(HaveOccurred())
	content, err := os.ReadFile(filepath.Join(home, "plugins", "resource-test-v0.1.0", pluginFile))
	g.Expect(err).NotTo(HaveOccurred())
	// An executable may have any content appended to it.
	padding := make([]byte, max(0, *pluginSize<<20-len(content)))
	_, err = rand.Read(padding[:len(padding)/3])
	g.Expect(err).NotTo(HaveOccurred())
	content = append(content, padding...)
	g.Expect(os.Mkdir(filepath.Join(dir, sharedPlugin), 0o755)).To(Succeed())
	g.Expect(os.WriteFile(filepath.Join(dir, sharedPlugin, pluginFile), content, 0o755)).To(Succeed())

	tarball, err := os.Create(filepath.Join(dir, mirroredFile))
	g.Expect(err).NotTo(HaveOccurred())
	compressed := gzip.NewWriter(tarball)
	archive := tar.NewWriter(compressed)
	g.Expect(archive.WriteHeader(&tar.Header{Name: pluginFile, Typeflag: tar.TypeReg, Mode: 0o755, Size: int64(len(content))})).To(Succeed())
	_, err = archive.Write(content)
	g.Expect(err).NotTo(HaveOccurred())
	for _, closer := range []io.Closer{archive, compressed, tarball} {
		g.Expect(closer.Close()).To(Succeed())
	}
	return dir
}

// claimPlugins creates a claim for a volume that is the directory on the node. The security profile of the namespace does not allow a pod
// to mount the directory itself.
func claimPlugins(ctx context.Context, t *testing.T, g *WithT, namespace, dir string) {
	t.Helper()
	size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	modes := []corev1.PersistentVolumeAccessMode{corev1.ReadOnlyMany}
	volume := &corev1.PersistentVolume{
		Name: "plugins-" + namespace,
		Spec: corev1.PersistentVolumeSpec{
			Capacity: size, AccessModes: modes, PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			ClaimRef:               &corev1.ObjectReference{Namespace: namespace, Name: "plugins"},
			PersistentVolumeSource: corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: dir}},
		},
	}
	g.Expect(system.Client.Create(ctx, volume)).To(Succeed())
	t.Cleanup(func() { _ = system.Client.Delete(context.WithoutCancel(ctx), volume) })
	g.Expect(system.Client.Create(ctx, &corev1.PersistentVolumeClaim{
		Namespace: namespace, Name: "plugins",
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: modes, Resources: corev1.VolumeResourceRequirements{Requests: size},
			StorageClassName: new(string), VolumeName: volume.Name,
		},
	})).To(Succeed())
}

// mirror serves the plugin to pods, and counts how often it is downloaded.
func mirror(t *testing.T, g *WithT, dir string) (address string, downloads *atomic.Int64) {
	t.Helper()
	listener, err := system.Cluster.Listen("tcp", system.Cluster.NodeAddress+":0")
	g.Expect(err).NotTo(HaveOccurred())
	downloads = &atomic.Int64{}
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(response http.ResponseWriter, request *http.Request) {
		if request.URL.Path == "/"+mirroredFile {
			downloads.Add(1)
		}
		http.ServeFile(response, request, filepath.Join(dir, filepath.Base(request.URL.Path)))
	})}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
	return "http://" + listener.Addr().String(), downloads
}

// kubernetesProvider is the directory name that the CLI expects for the stand-in of Pulumi's Kubernetes provider.
const kubernetesProvider = "resource-kubernetes-v" + tools.KubernetesProviderVersion

// applyObjects is a program that applies the objects in a file next to it. It uses the stand-in, which finds the cluster as the real
// provider does.
const applyObjects = `name: in-cluster
runtime: yaml
resources:
  objects:
    type: kubernetes:yaml/v2:ConfigFile
    properties: {file: "${pulumi.cwd}/objects.yaml"}
    options: {version: ` + tools.KubernetesProviderVersion + `}
`

// inClusterExample returns the documents of docs/examples/in-cluster by kind, moved to the namespace.
func inClusterExample(g *WithT, namespace string) map[string]string {
	content, err := os.ReadFile(filepath.Join(tools.RepositoryRoot(), "docs", "examples", "in-cluster", "stack.yaml"))
	g.Expect(err).NotTo(HaveOccurred())
	documents := map[string]string{}
	for document := range strings.SplitSeq(strings.ReplaceAll(string(content), "namespace: default", "namespace: "+namespace), "\n---\n") {
		var object struct{ Kind string }
		g.Expect(yaml.Unmarshal([]byte(document), &object)).To(Succeed())
		documents[object.Kind] = document + "\n"
	}
	return documents
}

// deployedObjects returns the objects that a Program deploys with the Kubernetes provider, as YAML documents.
func deployedObjects(g *WithT, program string) string {
	var decoded struct {
		Program struct {
			Resources map[string]struct {
				Type       string
				Properties map[string]any
			}
		}
	}
	g.Expect(yaml.Unmarshal([]byte(program), &decoded)).To(Succeed())
	var documents []string
	for _, resource := range decoded.Program.Resources {
		// kubernetes:apps/v1:Deployment; kubernetes:core/v1:Service for the core group, which has no name
		parts := strings.Split(resource.Type, ":")
		resource.Properties["apiVersion"], resource.Properties["kind"] = strings.TrimPrefix(parts[1], "core/"), parts[2]
		document, err := yaml.Marshal(resource.Properties)
		g.Expect(err).NotTo(HaveOccurred())
		documents = append(documents, string(document))
	}
	g.Expect(documents).To(HaveLen(2))
	return strings.Join(documents, "---\n")
}

// TestProgramHasTheRightsOfItsServiceAccount runs the example for a program that deploys into its own cluster. Without the Role of the
// example the program is not allowed to, and with it the program has all the permissions that it needs.
func TestProgramHasTheRightsOfItsServiceAccount(t *testing.T) {
	suite.Long(t, "runs programs that call the API server")
	t.Parallel()
	g := NewWithT(t)
	ctx := t.Context()
	const name = "in-cluster"
	removeNamespaceAtEnd(t, g, name)
	example := inClusterExample(g, name)
	app, stack, err := system.Provide(ctx, name, gitserver.Files{"Pulumi.yaml": applyObjects, "objects.yaml": deployedObjects(g, example["Program"])})
	g.Expect(err).NotTo(HaveOccurred())

	dir, err := os.MkdirTemp(system.Cluster.Dir, "kubernetes-")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(os.Chmod(dir, 0o755)).To(Succeed())
	g.Expect(os.Mkdir(filepath.Join(dir, kubernetesProvider), 0o755)).To(Succeed())
	plugin := filepath.Join(dir, kubernetesProvider, "pulumi-resource-kubernetes")
	g.Expect(tools.Compile(ctx, "the provider", filepath.Join(tools.RepositoryRoot(), "tests", "e2e", "install", "kubernetes"), ".", plugin, []string{"-trimpath", "-buildvcs=false"}, nil)).
		To(Succeed())
	claimPlugins(ctx, t, g, name, dir)
	mountPlugins(stack)
	stack.Spec.ServiceAccountName = "nginx"
	_, err = system.Cluster.KubectlInput(ctx, example["ServiceAccount"], "apply", "--filename=-")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(system.Client.Create(ctx, stack)).To(Succeed())
	awaitStack(ctx, g, app.Key(), func(g Gomega, stack *pulumiv1.Stack) {
		g.Expect(stack.Status.LastUpdate).NotTo(BeNil(), "%+v", stack.Status)
		g.Expect(stack.Status.LastUpdate.Message).To(And(ContainSubstring("system:serviceaccount:"+name+":nginx"), ContainSubstring("forbidden")))
	})

	for _, kind := range []string{"Role", "RoleBinding"} {
		_, err := system.Cluster.KubectlInput(ctx, example[kind], "apply", "--filename=-")
		g.Expect(err).NotTo(HaveOccurred())
	}
	waitReady(ctx, g, app)
	g.Expect(system.Client.Get(ctx, client.ObjectKey{Namespace: name, Name: "nginx"}, &appsv1.Deployment{})).To(Succeed())
}
