// Package podsystem sets up the whole running system on a real cluster: source-controller and stack-controller as pods in flux-system,
// installed from config/default with images that are built from the source tree. Every workspace has its own pod, and Flux's
// NetworkPolicies are enforced.
package podsystem

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/cluster"
	"github.com/stack-controller/stack-controller/tests/framework/gitserver"
	"github.com/stack-controller/stack-controller/tests/framework/images"
	"github.com/stack-controller/stack-controller/tests/framework/localsystem"
	"github.com/stack-controller/stack-controller/tests/framework/packagemirror"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
	"github.com/stack-controller/stack-controller/tests/tools"
)

// ControllerName is the name of stack-controller's Deployment and ServiceAccount in cluster.FluxNamespace.
const ControllerName = "stack-controller"

// Options configure the system.
type Options struct {
	// Log receives a line per step. Nil discards the lines.
	Log io.Writer
	// Dir holds all files; see cluster.Options.
	Dir string
	// ControllerArgs are further flags of stack-controller.
	ControllerArgs []string
	// WithNotificationController also runs Flux's notification-controller, and sends events to it.
	WithNotificationController bool
	// WithLanguages also puts the image for programs in other languages than YAML on the node, and starts a mirror of their packages.
	WithLanguages bool
	// WithoutController leaves out stack-controller and its CRDs, for tests that install them.
	WithoutController bool
}

// System is the running system.
type System struct {
	*localsystem.Apps
	// Cluster has the API server, the node and Flux.
	Cluster *cluster.Cluster
	// Images are the images on the node.
	Images Images
	// Packages is the mirror of packages, when the options ask for languages.
	Packages *packagemirror.Mirror

	options Options
}

// Images are the container images of the system.
type Images struct {
	Controller, Agent, Pulumi, Busybox, SourceController images.Image
	// NotificationController is set when the options ask for it.
	NotificationController images.Image
	// Languages is set when the options ask for it.
	Languages images.Image
}

// Start builds the images, starts the cluster and installs everything. It returns when stack-controller is ready. When it fails, it stops
// what it had started.
func Start(ctx context.Context, options Options) (*System, error) {
	if options.Log == nil {
		options.Log = io.Discard
	}
	s := &System{options: options}
	if err := s.start(ctx); err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	return s, nil
}

func (s *System) start(ctx context.Context) (err error) {
	if err := s.buildImages(ctx); err != nil {
		return err
	}
	clusterOptions := cluster.Options{
		Log:    s.options.Log,
		Dir:    s.options.Dir,
		Images: []string{s.Images.Busybox.Tar, s.Images.Pulumi.Tar, s.Images.Controller.Tar, s.Images.Agent.Tar},
	}
	if s.options.WithoutController {
		clusterOptions.CRDs = []string{}
	}
	if s.options.WithLanguages {
		clusterOptions.Images = append(clusterOptions.Images, s.Images.Languages.Tar)
	}
	if s.Cluster, err = cluster.Start(ctx, clusterOptions); err != nil {
		return err
	}
	if s.Apps, err = s.newApps(); err != nil {
		return err
	}
	if s.options.WithLanguages {
		listener, err := s.Cluster.Listen("tcp", s.Cluster.NodeAddress+":0")
		if err != nil {
			return fmt.Errorf("listen for pods that install packages: %w", err)
		}
		if s.Packages, err = packagemirror.Start(ctx, listener); err != nil {
			return errors.Join(err, listener.Close())
		}
	}
	if err := s.Cluster.InstallFlux(ctx, s.Images.SourceController); err != nil {
		return err
	}
	if s.options.WithNotificationController {
		if err := s.Cluster.InstallNotificationController(ctx, s.Images.NotificationController); err != nil {
			return err
		}
	}
	if err := s.Cluster.EnforceNetworkPolicies(ctx); err != nil {
		return err
	}
	if s.options.WithoutController {
		return nil
	}
	begin := time.Now()
	if err := s.InstallController(ctx); err != nil {
		return err
	}
	s.progress(fmt.Sprintf("stack-controller is ready after %s", time.Since(begin).Round(100*time.Millisecond)))
	return nil
}

// buildImages builds the images that are not cached yet.
func (s *System) buildImages(ctx context.Context) error {
	// The images are built one after the other, because a build that compiles uses all processors.
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(1)
	builds := map[*images.Image]func(context.Context, func(string)) (images.Image, error){
		&s.Images.Controller:       images.Controller,
		&s.Images.Agent:            images.Agent,
		&s.Images.Pulumi:           images.Pulumi,
		&s.Images.Busybox:          images.Busybox,
		&s.Images.SourceController: images.SourceController,
	}
	if s.options.WithNotificationController {
		builds[&s.Images.NotificationController] = images.NotificationController
	}
	if s.options.WithLanguages {
		builds[&s.Images.Languages] = images.Languages
	}
	for target, build := range builds {
		group.Go(func() (err error) {
			*target, err = build(ctx, s.progress)
			return err
		})
	}
	return group.Wait()
}

func (s *System) newApps() (*localsystem.Apps, error) {
	apps := &localsystem.Apps{
		BackendURL:      "file://" + stateMount,
		NamespaceLabels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted"},
		Prepare:         s.prepare,
		Log: func(ctx context.Context, lines int) string {
			log, err := s.ControllerLog(ctx, lines)
			if err != nil {
				return err.Error()
			}
			return log
		},
	}
	if err := makeStateDir(s.StateDir()); err != nil {
		return nil, err
	}
	var err error
	if apps.Client, err = localsystem.NewClient(s.Cluster.Config()); err != nil {
		return nil, err
	}
	if apps.Git, err = gitserver.Start(filepath.Join(s.Cluster.Dir, "git")); err != nil {
		return nil, err
	}
	listener, err := s.Cluster.Listen("tcp", s.Cluster.NodeAddress+":0")
	if err != nil {
		apps.Git.Stop()
		return nil, fmt.Errorf("listen for pods that clone: %w", err)
	}
	return apps, apps.Git.Publish(listener)
}

// Stop ends everything, including pods, and removes all files. It may be called more than once.
func (s *System) Stop() error {
	if s.Apps != nil {
		s.Git.Stop()
	}
	if s.Packages != nil {
		s.Packages.Stop()
	}
	return s.Cluster.Stop()
}

func (s *System) progress(line string) { _, _ = fmt.Fprintln(s.options.Log, line) }

// RunTests is the body of a package's TestMain, like cluster.RunTests. Each pass of the tests has its own system.
func RunTests(m interface{ Run() int }, options Options, setup func(*System)) (code int) {
	if err := cluster.Missing(); err != nil {
		return cluster.SkipAll(err)
	}
	if options.Log == nil {
		options.Log = os.Stderr
	}
	return suite.EachPass(func() int { return pass(m, options, setup) })
}

func pass(m interface{ Run() int }, options Options, setup func(*System)) (code int) {
	s, err := Start(context.Background(), options)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() {
		if err := s.Stop(); err != nil {
			code = suite.Failed(err)
		}
	}()
	setup(s)
	return m.Run()
}

// InstallController installs or updates stack-controller from config/default, and returns when it is ready.
func (s *System) InstallController(ctx context.Context) error {
	overlay, err := s.overlay()
	if err != nil {
		return err
	}
	// The apply is server-side, as the size of the CRDs requires.
	if _, err := s.Cluster.Kubectl(ctx, "apply", "--server-side", "--force-conflicts", "--kustomize="+overlay); err != nil {
		return err
	}
	return s.AwaitController(ctx)
}

// AwaitController waits until the Deployment of stack-controller is rolled out.
func (s *System) AwaitController(ctx context.Context) error {
	_, err := s.Cluster.Kubectl(ctx, "rollout", "status", "deployment/"+ControllerName,
		"--namespace="+cluster.FluxNamespace, "--timeout=120s")
	if err != nil {
		log, _ := s.ControllerLog(ctx, 30) // the first error is the one that counts
		return fmt.Errorf("%w\n%s", err, log)
	}
	return nil
}

// ControllerLog returns the last lines that stack-controller wrote.
func (s *System) ControllerLog(ctx context.Context, lines int) (string, error) {
	return s.Cluster.Kubectl(ctx, "logs", "deployment/"+ControllerName, "--namespace="+cluster.FluxNamespace,
		"--tail="+strconv.Itoa(lines))
}

// overlay writes an overlay as a user would: config/default with other images and flags. It returns the directory.
func (s *System) overlay() (string, error) {
	dir := filepath.Join(s.Cluster.Dir, "overlay")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("create the overlay: %w", err)
	}
	base, err := filepath.Rel(dir, filepath.Join(tools.RepositoryRoot(), "config", "default"))
	if err != nil {
		return "", fmt.Errorf("find config/default: %w", err)
	}
	args := []string{"--log-level=debug"}
	if !s.options.WithNotificationController {
		args = append(args, "--events-addr=")
	}
	args = append(args, s.options.ControllerArgs...)
	patch := make([]map[string]any, 0, len(args))
	for _, arg := range args {
		patch = append(patch, map[string]any{"op": "add", "path": "/spec/template/spec/containers/0/args/-", "value": arg})
	}
	operations, err := yaml.Marshal(patch)
	if err != nil {
		return "", fmt.Errorf("encode the overlay: %w", err)
	}
	content, err := yaml.Marshal(map[string]any{
		"apiVersion": "kustomize.config.k8s.io/v1beta1",
		"kind":       "Kustomization",
		"resources":  []string{base},
		"images":     []any{replacement("stack-controller/stack-controller", s.Images.Controller), replacement("stack-controller/stack-controller-agent", s.Images.Agent)},
		"patches":    []any{map[string]any{"target": map[string]string{"kind": "Deployment"}, "patch": string(operations)}},
	})
	if err != nil {
		return "", fmt.Errorf("encode the overlay: %w", err)
	}
	return dir, os.WriteFile(filepath.Join(dir, "kustomization.yaml"), content, 0o600)
}

// replacement returns an entry for kustomize's images.
func replacement(name string, image images.Image) map[string]string {
	at := strings.LastIndex(image.Reference, ":")
	return map[string]string{"name": name, "newName": image.Reference[:at], "newTag": image.Reference[at+1:]}
}

const (
	// stateMount is where workspace pods mount the state backend, which all namespaces share.
	stateMount = "/state"
	// StateClaim is the name of the PersistentVolumeClaim for the state backend in the namespace of each app.
	StateClaim = "state"
)

// StateDir returns the directory of the state backend on this machine.
func (s *System) StateDir() string { return filepath.Join(s.Cluster.Dir, "state") }

// makeStateDir creates a directory that every user of a pod may write to.
func makeStateDir(path string) error {
	if err := os.Mkdir(path, 0o700); err != nil {
		return fmt.Errorf("create the directory of the state: %w", err)
	}
	if err := os.Chmod(path, 0o777); err != nil {
		return fmt.Errorf("open the directory of the state: %w", err)
	}
	return nil
}

// prepare creates the claim for the state in the namespace of the Stack, and adds the image and the state to the Stack.
func (s *System) prepare(ctx context.Context, stack *pulumiv1.Stack) error {
	if err := s.ClaimState(ctx, stack.Namespace); err != nil {
		return err
	}
	stack.Spec.WorkspaceTemplate = &pulumiv1.WorkspaceTemplate{Spec: s.WorkspaceSpec()}
	return nil
}

// WorkspaceSpec returns a template for Workspaces with the image and the state.
func (s *System) WorkspaceSpec() *autov1alpha1.WorkspaceSpec {
	return &autov1alpha1.WorkspaceSpec{
		Image:           s.Images.Pulumi.Reference,
		ImagePullPolicy: corev1.PullIfNotPresent,
		// This is half of the default: the pods of all tests that run at the same time have to fit on a node with two processors.
		Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("50m")}},
		PodTemplate: &autov1alpha1.EmbeddedPodTemplateSpec{Spec: &autov1alpha1.EmbeddedPodSpec{
			Volumes: []corev1.Volume{{Name: "state",
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: StateClaim}}},
			Containers: []corev1.Container{{
				Name:         autov1alpha1.PulumiContainerName,
				VolumeMounts: []corev1.VolumeMount{{Name: "state", MountPath: stateMount}},
			}}}},
	}
}

// ClaimState creates a PersistentVolumeClaim for the state in the namespace, and its volume.
func (s *System) ClaimState(ctx context.Context, namespace string) error {
	size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	modes := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
	noClass := ""
	name := "state-" + namespace
	for _, object := range []client.Object{
		&corev1.PersistentVolume{
			Name: name,
			Spec: corev1.PersistentVolumeSpec{
				Capacity:                      size,
				AccessModes:                   modes,
				PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
				ClaimRef:                      &corev1.ObjectReference{Namespace: namespace, Name: StateClaim},
				PersistentVolumeSource:        corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: s.StateDir()}},
			},
		},
		&corev1.PersistentVolumeClaim{
			Namespace: namespace, Name: StateClaim,
			Spec: corev1.PersistentVolumeClaimSpec{
				AccessModes:      modes,
				Resources:        corev1.VolumeResourceRequirements{Requests: size},
				StorageClassName: &noClass,
				VolumeName:       name,
			},
		},
	} {
		if err := s.Client.Create(ctx, object); err != nil {
			return fmt.Errorf("create %T %s: %w", object, client.ObjectKeyFromObject(object), err)
		}
	}
	return nil
}
